//! *Cover*: which rung of the ladder gives how much of a wish.
//!
//! Each rung takes what those before it have left, as far as it reaches: a pool of hugepages as far
//! as there are free pages, transparent hugepages and base pages all of it. What a pool is not
//! known to have goes down the ladder, so the need of ordinary memory is never said too low. A pool
//! on the last rung is asked for all that is left: a shortage there is the pool's alone, and no
//! other memory makes up for it.

use super::super::pages::PageSize;
use super::facts::{Pool, bytes_of};
use super::wish::Requirements;

/// Which rung gives how much.
pub(super) struct Cover {
    rungs: Vec<Rung>,
    /// Bytes of ordinary memory, rounded up to whole pages.
    pub(super) ordinary_bytes: u64,
    /// Bytes of hugepages from pools.
    pub(super) hugetlb_bytes: u64,
    /// All bytes that get mapped, which is a little more than was asked for where pages are large.
    pub(super) mapped_bytes: u64,
}

struct Rung {
    page: PageSize,
    /// Bytes that this rung is asked for.
    requested_bytes: u64,
}

impl Cover {
    pub(super) fn of(requirements: &Requirements, pools: &[Pool], base_bytes: u64) -> Self {
        let mut left = requirements.size_bytes();
        let mut cover =
            Cover { rungs: Vec::new(), ordinary_bytes: 0, hugetlb_bytes: 0, mapped_bytes: 0 };
        for &page in requirements.pages() {
            cover.rungs.push(Rung { page, requested_bytes: left });
            match pools.iter().find(|pool| pool.page == page) {
                Some(pool) => {
                    let pages = left.div_ceil(bytes_of(page));
                    // On the last rung it is these pages or nothing.
                    let usable = if requirements.is_last(page) {
                        pages
                    } else {
                        pool.usable_in_cgroup().unwrap_or(0)
                    };
                    let taken = pages.min(usable).saturating_mul(bytes_of(page));
                    cover.hugetlb_bytes = cover.hugetlb_bytes.saturating_add(taken);
                    left = left.saturating_sub(taken);
                }
                None => {
                    let unit =
                        if page == PageSize::Thp { bytes_of(page) } else { base_bytes.max(1) };
                    let taken = left.div_ceil(unit).saturating_mul(unit);
                    cover.ordinary_bytes = cover.ordinary_bytes.saturating_add(taken);
                    left = 0;
                }
            }
        }
        cover.mapped_bytes = cover.ordinary_bytes.saturating_add(cover.hugetlb_bytes);
        cover
    }

    /// Pages of a pool that the wish asks for; 0 if they are not on the ladder, or are not reached.
    pub(super) fn pages_asked(&self, page: PageSize) -> u64 {
        let rung = self.rungs.iter().find(|rung| rung.page == page);
        rung.map_or(0, |rung| rung.requested_bytes.div_ceil(bytes_of(page)))
    }

    /// Bytes that transparent hugepages are asked for.
    pub(super) fn thp_bytes(&self) -> u64 {
        let rung = self.rungs.iter().find(|rung| rung.page == PageSize::Thp);
        rung.map_or(0, |rung| rung.requested_bytes)
    }
}

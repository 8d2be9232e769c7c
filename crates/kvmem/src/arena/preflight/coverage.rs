//! *Coverage*: which rung of the ladder provides which part of the requirements.
//!
//! Each rung takes as much as it can of the bytes that the rungs before it left: a hugetlb pool as
//! many as it has free pages, transparent hugepages and base pages all of them. Pages that a pool
//! is not known to have go down the ladder, so the need for ordinary memory is never
//! underestimated. A pool on the last rung must provide everything that remains: a shortage there
//! is the pool's alone, and no other memory replaces it.

use super::requirements::Requirements;
use crate::arena::PageSize;
use crate::arena::machine::hugetlb::{HugetlbPool, bytes_of};

/// The bytes that each rung provides.
pub(super) struct Coverage {
    rungs: Vec<Rung>,
    /// Bytes of ordinary memory, rounded up to whole pages.
    pub(super) ordinary_bytes: u64,
    /// Bytes of hugepages from hugetlb pools.
    pub(super) hugetlb_bytes: u64,
    /// All mapped bytes: a little more than the requested ones if pages are large.
    pub(super) mapped_bytes: u64,
}

struct Rung {
    page: PageSize,
    /// Bytes requested from this rung.
    requested_bytes: u64,
}

impl Coverage {
    pub(super) fn of(requirements: &Requirements, pools: &[HugetlbPool], base_bytes: u64) -> Self {
        let mut remaining = requirements.size_bytes();
        let mut coverage =
            Coverage { rungs: Vec::new(), ordinary_bytes: 0, hugetlb_bytes: 0, mapped_bytes: 0 };
        for &page in requirements.pages() {
            coverage.rungs.push(Rung { page, requested_bytes: remaining });
            match pools.iter().find(|pool| pool.page == page) {
                Some(pool) => {
                    let pages = remaining.div_ceil(bytes_of(page));
                    // The last rung has no alternative.
                    let usable = if requirements.is_last(page) {
                        pages
                    } else {
                        pool.usable_in_cgroup().unwrap_or(0)
                    };
                    let taken = pages.min(usable).saturating_mul(bytes_of(page));
                    coverage.hugetlb_bytes = coverage.hugetlb_bytes.saturating_add(taken);
                    remaining = remaining.saturating_sub(taken);
                }
                None => {
                    let unit =
                        if page == PageSize::Thp { bytes_of(page) } else { base_bytes.max(1) };
                    let taken = remaining.div_ceil(unit).saturating_mul(unit);
                    coverage.ordinary_bytes = coverage.ordinary_bytes.saturating_add(taken);
                    remaining = 0;
                }
            }
        }
        coverage.mapped_bytes = coverage.ordinary_bytes.saturating_add(coverage.hugetlb_bytes);
        coverage
    }

    /// Returns the pages requested from a pool; 0 if its rung is absent or not reached.
    pub(super) fn pages_requested(&self, page: PageSize) -> u64 {
        let rung = self.rungs.iter().find(|rung| rung.page == page);
        rung.map_or(0, |rung| rung.requested_bytes.div_ceil(bytes_of(page)))
    }

    /// Returns the bytes requested from transparent hugepages.
    pub(super) fn thp_bytes(&self) -> u64 {
        let rung = self.rungs.iter().find(|rung| rung.page == PageSize::Thp);
        rung.map_or(0, |rung| rung.requested_bytes)
    }
}

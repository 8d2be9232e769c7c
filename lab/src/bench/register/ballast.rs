//! Free memory that the host cannot reclaim.
//!
//! A guest reports free memory to its host in blocks of 2 MiB and more, and the host reclaims it.
//! Base pages need no blocks of that size. The ballast therefore makes more memory resident than a
//! run needs and discards all but one page per MiB. The pages in between are free, cannot merge
//! into a block of 2 MiB, and stay backed by the host. Allocations of base pages get them, because
//! the kernel splits no large block while small ones are free.
//!
//! This does not work for transparent hugepages, which need such blocks.

use kvmem::arena::{ArenaError, PageSize, Populate, Region};

/// One page stays in each range of this length. It is half of the smallest block that is reported,
/// because pages that are adjacent in the region need not be adjacent in memory.
const STRIDE: usize = 1 << 20;
const BASE_PAGE: usize = 4096;

/// The pages that keep free pages apart.
#[derive(Debug)]
pub(super) struct Ballast {
    _pages: Region,
}

impl Ballast {
    /// Leaves `bytes` free between pages that stay resident until the ballast is dropped.
    pub(super) fn new(bytes: u64) -> Result<Self, ArenaError> {
        // A single thread gets adjacent pages.
        let builder =
            Region::builder(bytes as usize).ladder(PageSize::Base).populate(Populate::threads(1));
        let pages = builder.map()?;
        for start in (0..pages.len()).step_by(STRIDE) {
            let end = pages.len().min(start + STRIDE);
            if end - start > BASE_PAGE {
                pages.discard(start + BASE_PAGE..end)?;
            }
        }
        Ok(Self { _pages: pages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_page_per_stride_stays() {
        let ballast = Ballast::new(8 << 20).unwrap();
        let found = ballast._pages.residency(..).unwrap();
        if found.error_bytes == 0 {
            assert_eq!(found.resident_bytes, 8 * BASE_PAGE as u64);
        }
    }
}

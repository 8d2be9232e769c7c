//! *Ballast*: memory that the host cannot take back while it is free.
//!
//! A guest reports free memory to its host in blocks of 2 MiB and more, and the host takes it back.
//! Base pages need no blocks of that size. So more memory than a run takes is made resident, and
//! all of it but a page in each MiB is given back: what lies between those pages is free, cannot
//! grow together to a block of 2 MiB, and stays fetched from the host. Whoever asks for base pages
//! gets these, for the kernel breaks up no large block while it has small ones.
//!
//! There is nothing like it for transparent hugepages, which need just such blocks.

use kvmem::arena::{ArenaError, PageSize, Populate, Region};

/// A page stays in each stretch of this length: half of the smallest block that is reported, since
/// pages that follow each other in the region need not do so in memory.
const STRETCH: usize = 1 << 20;
const BASE_PAGE: usize = 4096;

/// Pages that stand between free ones.
#[derive(Debug)]
pub(super) struct Ballast {
    _pages: Region,
}

impl Ballast {
    /// Leaves `bytes` free between pages that stay, until this is dropped.
    pub(super) fn lay(bytes: u64) -> Result<Self, ArenaError> {
        // One thread alone is given pages that lie side by side.
        let builder =
            Region::builder(bytes as usize).ladder(PageSize::Base).populate(Populate::threads(1));
        let pages = builder.map()?;
        for start in (0..pages.len()).step_by(STRETCH) {
            let end = pages.len().min(start + STRETCH);
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
    fn a_page_in_each_stretch_stays() {
        let ballast = Ballast::lay(8 << 20).unwrap();
        let found = ballast._pages.residency(..).unwrap();
        if found.error_bytes == 0 {
            assert_eq!(found.resident_bytes, 8 * BASE_PAGE as u64);
        }
    }
}

//! *Range to populate*: pages of one kind, and their even division among threads.

use std::ops::Range;
use std::ptr::NonNull;

use crate::arena::PageSize;

/// A range to populate; its pages are of one kind.
#[derive(Clone, Debug)]
pub(crate) struct PopulateRange {
    /// Its first address, on a page boundary.
    pub(crate) at: NonNull<u8>,
    /// Its offsets in the region, for errors.
    pub(crate) range: Range<usize>,
    pub(crate) page: PageSize,
    /// Whether populating makes the hugepages, because faults do not.
    pub(crate) by_collapse: bool,
}

// SAFETY: the address is a number for calls of the kernel, and no byte is accessed through it.
unsafe impl Sync for PopulateRange {}

impl PopulateRange {
    pub(super) fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns the last page boundary in memory up to `offset`, but not before `minimum`.
    pub(super) fn boundary(&self, offset: usize, minimum: usize) -> usize {
        (offset - ((self.at.addr().get() + offset) % self.page.bytes()).min(offset)).max(minimum)
    }

    /// Returns the share of one of `threads` threads of a window.
    pub(super) fn share(
        &self,
        window: &Range<usize>,
        thread: usize,
        threads: usize,
    ) -> Range<usize> {
        let edge = |n: usize| match n {
            0 => window.start,
            n if n == threads => window.end,
            n => self.boundary(
                window.start + (window.len() as u128 * n as u128 / threads as u128) as usize,
                window.start,
            ),
        };
        edge(thread)..edge(thread + 1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn shares_are_disjoint_even_and_on_page_boundaries() {
        for page in [PageSize::Base, PageSize::Huge2M] {
            let size = page.bytes();
            for pages in [1, 2, 3, 7, 64, 1000] {
                for skew in [0, size / 2] {
                    let at = NonNull::without_provenance((1 << 40 | skew).try_into().unwrap());
                    let part =
                        PopulateRange { at, range: 0..pages * size, page, by_collapse: false };
                    for threads in 1..=pages.min(9) {
                        let mut end = 0;
                        for thread in 0..threads {
                            let share = part.share(&(0..part.len()), thread, threads);
                            assert_eq!(share.start, end);
                            let even = part.len() / threads;
                            assert!(share.len() + 2 * size > even && share.len() < even + 2 * size);
                            let inner = thread > 0;
                            assert!(
                                !inner
                                    || share.is_empty()
                                    || (skew + share.start).is_multiple_of(size)
                                    || share.start == 0
                            );
                            end = share.end;
                        }
                        assert_eq!(end, part.len());
                    }
                }
            }
        }
    }
}

//! *Discarding*: returns pages while the addresses stay, and passes advice to the kernel about
//! pages.

use std::ops::{Range, RangeBounds};

use super::backing::Backing;
use super::region::Region;
use crate::arena::error::call_failed;
use crate::arena::{ArenaError, Call};
use crate::sys;

/// Advice that changes neither the bytes nor the possible results of a touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// No special access pattern.
    Normal,
    /// Accessed in random order: reading ahead is useless.
    Random,
    /// Accessed in order.
    Sequential,
    /// Used soon.
    WillNeed,
    /// Not used for a while: may be swapped out first (Linux 5.4).
    Cold,
    /// Use transparent hugepages from now on.
    HugePages,
    /// Use base pages from now on.
    BasePages,
    /// Collect resident base pages into hugepages now (Linux 6.1).
    Collapse,
}

impl Advice {
    fn number(self) -> i32 {
        match self {
            Advice::Normal => libc::MADV_NORMAL,
            Advice::Random => libc::MADV_RANDOM,
            Advice::Sequential => libc::MADV_SEQUENTIAL,
            Advice::WillNeed => libc::MADV_WILLNEED,
            Advice::Cold => libc::MADV_COLD,
            Advice::HugePages => libc::MADV_HUGEPAGE,
            Advice::BasePages => libc::MADV_NOHUGEPAGE,
            Advice::Collapse => libc::MADV_COLLAPSE,
        }
    }
}

impl Region {
    /// Gives the pages of a range back to the kernel. The addresses stay valid and read as zero
    /// until they are written again. For shared memory, the kernel removes the pages from the file,
    /// for all processes.
    ///
    /// The range begins and ends on base page boundaries. The kernel takes a hugepage back whole,
    /// or splits it first.
    ///
    /// A caller that holds a plain slice of the range (see [`bytes`](Region::bytes)) has promised
    /// that no thread discards it. A range that is registered with a device cannot be discarded:
    /// the device would keep writing to the old pages, where no reader sees the data.
    ///
    /// # Errors
    /// - [`OutOfBounds`](ArenaError::OutOfBounds) if the range is not within the region.
    /// - [`Misaligned`](ArenaError::Misaligned) if it does not begin and end on base page
    ///   boundaries.
    /// - [`Foreign`](ArenaError::Foreign) if the memory belongs to another owner.
    /// - [`Pooled`](ArenaError::Pooled) for pages of a hugetlb pool: after a discard, a later touch
    ///   could find the pool empty and kill the process.
    /// - [`Registered`](ArenaError::Registered) if a part of the range is registered with a device.
    /// - [`CallFailed`](ArenaError::CallFailed) if the kernel's call fails. Then a part may be
    ///   discarded; after every other error nothing is.
    pub fn discard(&self, range: impl RangeBounds<usize>) -> Result<(), ArenaError> {
        let range = self.aligned(range)?;
        let advice = match self.mapping().backing() {
            Some(Backing::Private) => libc::MADV_DONTNEED,
            Some(Backing::Shared) => libc::MADV_REMOVE,
            None => return Err(ArenaError::Foreign { what: "discarding" }),
        };
        if let Some((segment, part)) =
            self.segments(range.clone()).find(|(segment, _)| segment.obtained.is_pooled())
        {
            return Err(ArenaError::Pooled { range: part, page: segment.obtained });
        }
        let in_mapping = range.start + self.start_in_mapping()..range.end + self.start_in_mapping();
        let (pinned, _lock) = self.mapping().pinned().overlapping(&in_mapping);
        if let Some(pinned) = pinned {
            return Err(ArenaError::Registered { range, held: pinned });
        }
        self.mapping().set_discarded();
        self.call(range, advice)
    }

    /// Gives the kernel advice about a range, which begins and ends on base page boundaries.
    ///
    /// # Errors
    /// - [`OutOfBounds`](ArenaError::OutOfBounds) if the range is not within the region.
    /// - [`Misaligned`](ArenaError::Misaligned) if it does not begin and end on base page
    ///   boundaries.
    /// - [`Foreign`](ArenaError::Foreign) if the memory belongs to another owner.
    /// - [`CallFailed`](ArenaError::CallFailed) if the kernel does not know the advice or cannot
    ///   follow it.
    pub fn advise(&self, range: impl RangeBounds<usize>, advice: Advice) -> Result<(), ArenaError> {
        let range = self.aligned(range)?;
        if self.mapping().backing().is_none() {
            return Err(ArenaError::Foreign { what: "advice" });
        }
        self.call(range, advice.number())
    }

    fn call(&self, range: Range<usize>, advice: i32) -> Result<(), ArenaError> {
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: `aligned` found the range within the region, which is one allocation.
        let at = unsafe { self.base().add(range.start) };
        // SAFETY: the range is part of a mapping that kvmem made: both callers exclude memory of
        // other owners. Only `discard` gives advice that changes bytes, to zeros, which are valid.
        // References to them do not exist: making one promises that no thread discards its bytes,
        // and `as_mut_bytes` borrows the region exclusively.
        unsafe { sys::madvise(at, range.len(), advice) }
            .map_err(|errno| call_failed(Call::Advise, range.len(), errno))
    }

    fn aligned(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>, ArenaError> {
        let range = self.resolve(range)?;
        let page = sys::page_size();
        let first = self.base().addr().get();
        if [range.start, range.end].iter().any(|offset| !(first + offset).is_multiple_of(page)) {
            return Err(ArenaError::Misaligned { start: range.start, end: range.end, page });
        }
        Ok(range)
    }
}

//! *Discarding*: giving pages back while the addresses stay, and advice about the rest.

use std::ops::{Range, RangeBounds};

use super::diagnose::refused;
use super::{ArenaError, Backing, Call, Region};
use crate::sys;

/// Advice that changes neither bytes nor what a touch can lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// No special pattern.
    Normal,
    /// Accessed in any order: reading ahead is of no use.
    Random,
    /// Accessed in order.
    Sequential,
    /// To be used soon.
    WillNeed,
    /// Not to be used for a while: may be swapped out first (Linux 5.4).
    Cold,
    /// Transparent hugepages from now on.
    HugePages,
    /// Base pages from now on.
    BasePages,
    /// What is resident in base pages is to be collected into hugepages now (Linux 6.1).
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
    /// Gives the pages of a range back to the kernel. The addresses stay; what is read there from
    /// now on is zero, until it is written again. Of shared memory the pages are taken out of
    /// the file, for all processes.
    ///
    /// The range begins and ends on base page boundaries. A hugepage is given back whole, or is
    /// split first.
    ///
    /// Whoever holds a plain slice of the range (see [`bytes`](Region::bytes)) has promised that
    /// nobody discards it. What is registered with a device is not discarded: the device would
    /// go on with the old pages, and nobody would see what it writes.
    ///
    /// # Errors
    /// [`OutOfBounds`](ArenaError::OutOfBounds); [`Misaligned`](ArenaError::Misaligned);
    /// [`Foreign`](ArenaError::Foreign); [`Pooled`](ArenaError::Pooled): pages of a pool are not
    /// given back one by one, since a later touch could find the pool empty and kill the
    /// process; [`Registered`](ArenaError::Registered). Nothing is discarded then. If the
    /// kernel refuses ([`Refused`](ArenaError::Refused)), a part may have been discarded.
    pub fn discard(&self, range: impl RangeBounds<usize>) -> Result<(), ArenaError> {
        let range = self.aligned(range)?;
        let advice = match self.mapping().backing() {
            Some(Backing::Private) => libc::MADV_DONTNEED,
            Some(Backing::Shared) => libc::MADV_REMOVE,
            None => return Err(ArenaError::Foreign { what: "discarding" }),
        };
        if let Some((piece, part)) =
            self.pieces(range.clone()).find(|(piece, _)| piece.got.is_pooled())
        {
            return Err(ArenaError::Pooled { range: part, page: piece.got });
        }
        let in_mapping = range.start + self.start_in_mapping()..range.end + self.start_in_mapping();
        let (held, _nobody_else) = self.mapping().holds().look(&in_mapping);
        if let Some(held) = held {
            return Err(ArenaError::Registered { range, held });
        }
        self.mapping().set_discarded();
        self.call(range, advice)
    }

    /// Gives the kernel advice about a range, which begins and ends on base page boundaries.
    ///
    /// # Errors
    /// [`OutOfBounds`](ArenaError::OutOfBounds), [`Misaligned`](ArenaError::Misaligned),
    /// [`Foreign`](ArenaError::Foreign), and [`Refused`](ArenaError::Refused) if the kernel does
    /// not know the advice, or cannot follow it.
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
        // SAFETY: the offset is within the region.
        let at = unsafe { self.base().add(range.start) };
        // SAFETY: the range is part of a mapping of ours. What drops bytes was asked for by
        // `discard`, under whose conditions nobody relies on them.
        unsafe { sys::madvise(at, range.len(), advice) }
            .map_err(|errno| refused(Call::Advise, range.len(), errno))
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

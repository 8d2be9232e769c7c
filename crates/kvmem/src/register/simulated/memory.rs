//! *Memory*: which addresses are resident, and how many more can be.
//!
//! Books only: no byte is ever touched, so a region may have more addresses than there is memory.

use std::ops::Range;

use super::ranges::Ranges;

#[derive(Debug)]
pub(super) struct Memory {
    /// Whether addresses are resident of which nothing else is known.
    resident_at_first: bool,
    /// Those of which the opposite is true.
    others: Ranges,
    /// Bytes that can still be made resident.
    left: u64,
}

impl Memory {
    pub(super) fn new(resident_at_first: bool, left: u64) -> Memory {
        Memory { resident_at_first, others: Ranges::default(), left }
    }

    /// Bytes that can still be made resident.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Bytes of a range that are not resident.
    pub(super) fn untouched(&self, range: &Range<usize>) -> u64 {
        let others = self.others.count(range);
        if self.resident_at_first { others } else { range.len() as u64 - others }
    }

    /// A range is resident from now on.
    pub(super) fn touch(&mut self, range: Range<usize>) {
        self.left = self.left.saturating_sub(self.untouched(&range));
        self.set(range, true);
    }

    /// A range is not resident any more.
    pub(super) fn discard(&mut self, range: Range<usize>) {
        self.left = self.left.saturating_add(range.len() as u64 - self.untouched(&range));
        self.set(range, false);
    }

    fn set(&mut self, range: Range<usize>, resident: bool) {
        if resident == self.resident_at_first {
            self.others.remove(range);
        } else {
            self.others.add(range);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_as_it_is_told_and_then_keeps_books() {
        for first in [true, false] {
            let mut memory = Memory::new(first, 1000);
            assert_eq!(memory.untouched(&(100..200)), if first { 0 } else { 100 });
            memory.discard(100..200);
            memory.touch(150..160);
            assert_eq!(memory.untouched(&(100..200)), 90);
            assert_eq!(memory.untouched(&(155..165)), 5);
            let left = memory.left();
            memory.touch(100..200);
            assert_eq!((memory.untouched(&(100..200)), left - memory.left()), (0, 90));
            memory.touch(100..200);
            assert_eq!(left - memory.left(), 90, "what is resident needs nothing");
        }
    }
}

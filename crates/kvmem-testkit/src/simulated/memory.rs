//! *Memory*: the addresses that are resident, and how many more can be.
//!
//! Only this record exists: no byte is ever touched. A region may therefore be larger than the
//! memory of the real machine.

use std::ops::Range;

use super::ranges::Ranges;

#[derive(Debug)]
pub(super) struct SimulatedMemory {
    /// Whether an address is resident that is not in `others`.
    resident_at_first: bool,
    /// The addresses for which the opposite holds.
    others: Ranges,
    /// Bytes that can still be made resident.
    remaining: u64,
}

impl SimulatedMemory {
    pub(super) fn new(resident_at_first: bool, remaining: u64) -> SimulatedMemory {
        SimulatedMemory { resident_at_first, others: Ranges::default(), remaining }
    }

    /// Returns the bytes that can still be made resident.
    pub(super) fn remaining_bytes(&self) -> u64 {
        self.remaining
    }

    /// Returns the bytes of a range that are not resident.
    pub(super) fn untouched(&self, range: &Range<usize>) -> u64 {
        let others = self.others.count(range);
        if self.resident_at_first { others } else { range.len() as u64 - others }
    }

    /// Makes a range resident.
    pub(super) fn touch(&mut self, range: Range<usize>) {
        self.remaining = self.remaining.saturating_sub(self.untouched(&range));
        self.set(range, true);
    }

    /// Makes a range not resident.
    pub(super) fn discard(&mut self, range: Range<usize>) {
        self.remaining = self.remaining.saturating_add(range.len() as u64 - self.untouched(&range));
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
    fn residency_starts_as_set_and_is_tracked() {
        for first in [true, false] {
            let mut memory = SimulatedMemory::new(first, 1000);
            assert_eq!(memory.untouched(&(100..200)), if first { 0 } else { 100 });
            memory.discard(100..200);
            memory.touch(150..160);
            assert_eq!(memory.untouched(&(100..200)), 90);
            assert_eq!(memory.untouched(&(155..165)), 5);
            let remaining = memory.remaining_bytes();
            memory.touch(100..200);
            assert_eq!(
                (memory.untouched(&(100..200)), remaining - memory.remaining_bytes()),
                (0, 90)
            );
            memory.touch(100..200);
            assert_eq!(remaining - memory.remaining_bytes(), 90, "resident bytes take no memory");
        }
    }
}

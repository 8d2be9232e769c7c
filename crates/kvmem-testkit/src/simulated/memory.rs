//! *Memory*: the addresses that are resident, and how many more can be.
//!
//! Only this record exists: no byte is ever touched. A region may therefore be larger than the
//! memory of the real machine.

use std::ops::Range;

use rangemap::RangeSet;

#[derive(Debug)]
pub(super) struct SimulatedMemory {
    /// Whether an address is resident that is not in `others`.
    resident_at_first: bool,
    /// The addresses for which the opposite holds.
    others: RangeSet<usize>,
    /// Bytes that can still be made resident.
    remaining: u64,
}

impl SimulatedMemory {
    pub(super) fn new(resident_at_first: bool, remaining: u64) -> SimulatedMemory {
        SimulatedMemory { resident_at_first, others: RangeSet::new(), remaining }
    }

    /// Returns the bytes that can still be made resident.
    pub(super) fn remaining_bytes(&self) -> u64 {
        self.remaining
    }

    /// Returns the bytes of a range that are not resident.
    pub(super) fn untouched(&self, range: &Range<usize>) -> u64 {
        // The set allows no empty range.
        let overlaps =
            |other: &Range<usize>| (other.end.min(range.end) - other.start.max(range.start)) as u64;
        let others: u64 = match range.is_empty() {
            true => 0,
            false => self.others.overlapping(range).map(overlaps).sum(),
        };
        if self.resident_at_first { others } else { range.len() as u64 - others }
    }

    /// Makes a range resident.
    pub(super) fn touch(&mut self, range: Range<usize>) {
        self.remaining = self.remaining.saturating_sub(self.untouched(&range));
        match self.resident_at_first {
            _ if range.is_empty() => {}
            true => self.others.remove(range),
            false => self.others.insert(range),
        }
    }
}

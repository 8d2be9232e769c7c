//! *Pinned ranges*: the promise that the pages of a range stay where they are.
//!
//! A device that has the addresses of pages keeps writing to these pages, whatever the kernel maps
//! at their virtual addresses later. A pinned range therefore cannot be discarded. It cannot be
//! unmapped either, because the pin keeps the mapping alive.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::mapping::Mapping;

/// The pinned ranges of one mapping, as offsets into it.
#[derive(Debug, Default)]
pub(crate) struct PinnedRanges(Mutex<Vec<Range<usize>>>);

impl PinnedRanges {
    /// Locks the list and finds a pinned range that overlaps `range`. No range is pinned until the
    /// lock is dropped.
    pub(crate) fn overlapping(
        &self,
        range: &Range<usize>,
    ) -> (Option<Range<usize>>, impl Drop + use<'_>) {
        let ranges = self.lock();
        let pinned = ranges
            .iter()
            .find(|pinned| pinned.start < range.end && range.start < pinned.end)
            .cloned();
        (pinned, ranges)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        // Each change is one push or one removal, so a panic elsewhere leaves the list consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pinned range; dropping it ends the pin.
#[derive(Debug)]
pub(crate) struct PinnedRange {
    mapping: Arc<Mapping>,
    range: Range<usize>,
}

impl PinnedRange {
    /// Pins a range of a mapping, given as offsets into it.
    pub(crate) fn new(mapping: &Arc<Mapping>, range: Range<usize>) -> PinnedRange {
        mapping.pinned().lock().push(range.clone());
        PinnedRange { mapping: Arc::clone(mapping), range }
    }
}

impl Drop for PinnedRange {
    fn drop(&mut self) {
        let mut ranges = self.mapping.pinned().lock();
        if let Some(at) = ranges.iter().position(|pinned| *pinned == self.range) {
            ranges.swap_remove(at);
        }
    }
}

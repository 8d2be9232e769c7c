//! *Pinned ranges*: the list of a mapping's ranges whose pages stay where they are.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        // Each change is one push or one removal, so a panic elsewhere leaves the list consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

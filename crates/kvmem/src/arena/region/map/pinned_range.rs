//! *Pinned range*: the promise that the pages of a range stay where they are.
//!
//! A device that has the addresses of pages keeps writing to these pages, whatever the kernel maps
//! at their virtual addresses later. A pinned range therefore cannot be discarded. It cannot be
//! unmapped either, because the pin keeps the mapping alive.

use std::ops::Range;
use std::sync::Arc;

use super::mapping::Mapping;

/// A pinned range; dropping it ends the pin.
#[derive(Debug)]
pub(crate) struct PinnedRange {
    mapping: Arc<Mapping>,
    range: Range<usize>,
}

impl PinnedRange {
    /// Pins a range of a mapping, as offsets into it.
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

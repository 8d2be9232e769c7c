//! *Byte owners*: records which bytes are in use, to detect two users of one byte.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

/// One mark per byte: a second user is detected at once, from any thread.
pub(crate) struct ByteOwners(Vec<AtomicU8>);

impl ByteOwners {
    pub(crate) fn new(capacity: u64) -> Self {
        ByteOwners((0..capacity).map(|_| AtomicU8::new(0)).collect())
    }

    fn of(&self, range: Range<u64>) -> &[AtomicU8] {
        &self.0[range.start as usize..range.end as usize]
    }

    /// Marks a newly allocated range.
    pub(crate) fn take(&self, range: Range<u64>) {
        for byte in self.of(range.clone()) {
            assert_eq!(byte.swap(1, Ordering::Relaxed), 0, "a byte of {range:?} has an owner");
        }
    }

    /// Clears a range before it is freed.
    pub(crate) fn leave(&self, range: Range<u64>) {
        for byte in self.of(range.clone()) {
            assert_eq!(byte.swap(0, Ordering::Relaxed), 1, "a byte of {range:?} has no owner");
        }
    }
}

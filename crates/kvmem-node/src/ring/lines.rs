//! *Lines*: the header of a ring and its area, wherever they lie.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::protocol::MAX_MESSAGE;
use crate::sync::{AtomicU32, AtomicU64};

/// A value on two cache lines of its own: processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Lines<T>(T);

/// What both sides store for each other. All zeros: an empty ring.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct RingHeader {
    tail: Lines<AtomicU64>,
    head: Lines<AtomicU64>,
    consumer_sleeps: Lines<AtomicU32>,
    producer_sleeps: Lines<AtomicU32>,
}

impl RingHeader {
    /// The position behind the last message. The producer stores it.
    pub(super) fn tail(&self) -> &AtomicU64 {
        &self.tail.0
    }

    /// The position of the first message. The consumer stores it.
    pub(super) fn head(&self) -> &AtomicU64 {
        &self.head.0
    }

    /// Not 0: the consumer sleeps until its doorbell rings.
    pub(super) fn consumer_sleeps(&self) -> &AtomicU32 {
        &self.consumer_sleeps.0
    }

    /// Not 0: the producer waits for space until its doorbell rings.
    pub(super) fn producer_sleeps(&self) -> &AtomicU32 {
        &self.producer_sleeps.0
    }
}

/// One ring in memory that another process may change at any time.
#[derive(Debug)]
pub(super) struct RingView {
    header: NonNull<RingHeader>,
    /// As many words as `mask + 1`.
    area: NonNull<AtomicU64>,
    mask: u64,
    /// Keeps the memory.
    _memory: Arc<dyn std::any::Any + Send + Sync>,
}

// SAFETY: the header and the area are atomics, and the memory that contains them is `Send + Sync`.
unsafe impl Send for RingView {}

impl RingView {
    /// Views a ring.
    ///
    /// # Safety
    /// The two pointers are aligned, and valid while `memory` lives; `area` has `words` words. All
    /// accesses to both are atomic.
    pub(super) unsafe fn new(
        header: NonNull<RingHeader>,
        area: NonNull<AtomicU64>,
        words: usize,
        memory: Arc<dyn std::any::Any + Send + Sync>,
    ) -> RingView {
        assert!(words.is_power_of_two() && words > 1, "{words} words");
        RingView { header, area, mask: words as u64 - 1, _memory: memory }
    }

    pub(super) fn header(&self) -> &RingHeader {
        // SAFETY: the pointer is valid while `_memory` lives, as the caller of `new` has promised.
        unsafe { self.header.as_ref() }
    }

    /// Returns the number of words.
    pub(super) fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Returns the most bytes of a message.
    pub(super) fn max_message(&self) -> usize {
        (self.mask as usize * size_of::<u64>()).min(MAX_MESSAGE)
    }

    /// Returns the words from a position on: those up to the end of the area, and the rest.
    pub(super) fn words(&self, position: u64, len: u64) -> (&[AtomicU64], &[AtomicU64]) {
        assert!(len <= self.capacity(), "{len} words of {}", self.capacity());
        // SAFETY: as in `header`; the area has `mask + 1` words.
        let area =
            unsafe { std::slice::from_raw_parts(self.area.as_ptr(), self.mask as usize + 1) };
        let (start, behind) = area.split_at((position & self.mask) as usize);
        let len = len as usize;
        let first = len.min(behind.len());
        (&behind[..first], &start[..len - first])
    }
}

/// Returns the words that a message of `len` bytes takes, with that of its length.
pub(super) fn words_of(len: usize) -> u64 {
    1 + len.div_ceil(size_of::<u64>()) as u64
}

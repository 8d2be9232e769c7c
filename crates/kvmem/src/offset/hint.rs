//! *Hint*: what the last holder of the lock left for those who only want to know whether to try.
//!
//! A store that is full answers most requests with no. That answer must not cost the lock: the hint is the size
//! of the largest free range, published before the lock is released. A reader without the lock
//! sees the value of some moment during its call, or one published by an operation that is still under way; in both cases the
//! call can be ordered at that moment, when nothing longer was free. What a reader can never see is a value below
//! the truth of everything that *happened before* its call: the publishing store of a free precedes the free's
//! return, and coherence forbids reading anything older.

use crate::sync::{AtomicU64, Ordering};

/// Largest free range and free bytes, readable without the lock.
///
/// On cache lines of its own: readers of the hint do not disturb the lock.
#[repr(align(128))]
pub(super) struct Hint {
    largest: AtomicU64,
    free: AtomicU64,
    limit: AtomicU64,
}

impl Hint {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Hint { largest: AtomicU64::new(0), free: AtomicU64::new(0), limit: AtomicU64::new(0) }
    }

    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Hint { largest: AtomicU64::new(0), free: AtomicU64::new(0), limit: AtomicU64::new(0) }
    }

    /// Publishes; the caller holds the lock, so there is one writer at a time.
    #[inline]
    pub(super) fn publish(&self, largest: u64, free: u64) {
        // Relaxed: the hint guards no other memory. That a free is seen by whoever learns of it rests on the
        // coherence of this one atomic, and on whatever told the reader of the free (it pairs with nothing here).
        self.free.store(free, Ordering::Relaxed);
        self.largest.store(largest, Ordering::Relaxed);
    }

    /// Publishes the longest range the space could ever hand out, when that changes.
    pub(super) fn publish_limit(&self, limit: u64) {
        // Relaxed: a figure to report; it guards nothing.
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// The longest range the space could ever hand out.
    pub(super) fn limit(&self) -> u64 {
        // Relaxed: see `publish_limit`.
        self.limit.load(Ordering::Relaxed)
    }

    /// An upper bound of the largest free range.
    #[inline]
    pub(super) fn largest(&self) -> u64 {
        // Relaxed: see `publish`.
        self.largest.load(Ordering::Relaxed)
    }

    /// Free bytes, as of a recent moment.
    pub(super) fn free(&self) -> u64 {
        // Relaxed: a figure to report; it guards nothing.
        self.free.load(Ordering::Relaxed)
    }
}

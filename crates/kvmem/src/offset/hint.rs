//! *Hint*: what the last holder of the lock left for those who only want to know whether to try.
//!
//! A store that is full answers most requests with no. That answer must not cost the lock: the hint
//! is the size of the largest free range, published before the lock is released. A reader without
//! the lock sees the value of some moment during its call, or one published by an operation that is
//! still under way; in both cases the call can be ordered at that moment, when nothing longer was
//! free. What a reader can never see is a value below the truth of everything that *happened
//! before* its call: the publishing store of a free precedes the free's return, and coherence
//! forbids reading anything older.

use crate::sync::{AtomicU64, Ordering, Together};

/// Largest free range and free bytes, readable without the lock.
///
/// On cache lines of its own: readers of the hint do not disturb the lock. All of it is one line,
/// so that what is there for reports costs the writer a store to a line that it has.
#[repr(align(128))]
pub(super) struct Hint {
    largest: AtomicU64,
    free: AtomicU64,
    limit: AtomicU64,
    /// For reports: the longest free range on the books, without what pending ranges may join.
    joined: AtomicU64,
    /// For reports: allocations alive.
    live: AtomicU64,
    /// For reports: the length of the space.
    capacity: AtomicU64,
    /// The length and what is free change together.
    resizes: Together,
}

/// What a holder of the lock has left for reports: figures of about one moment, as he may be just
/// storing the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceStats {
    pub(crate) capacity: u64,
    /// Bytes not in use.
    pub(crate) free: u64,
    /// The longest free range, what pending ranges may join left out.
    pub(crate) largest: u64,
    pub(crate) live: u64,
}

impl Hint {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Hint {
            largest: AtomicU64::new(0),
            free: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            joined: AtomicU64::new(0),
            live: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
            resizes: Together::new(),
        }
    }

    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Hint {
            largest: AtomicU64::new(0),
            free: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            joined: AtomicU64::new(0),
            live: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
            resizes: Together::new(),
        }
    }

    /// Publishes; the caller holds the lock, so there is one writer at a time.
    #[inline]
    pub(super) fn publish(&self, largest: u64, free: u64) {
        // Relaxed: the hint guards no other memory. That a free is seen by whoever learns of it
        // rests on the coherence of this one atomic, and on whatever told the reader of the
        // free (it pairs with nothing here).
        self.free.store(free, Ordering::Relaxed);
        self.largest.store(largest, Ordering::Relaxed);
    }

    /// Publishes what is there for reports only, likewise.
    #[inline]
    pub(super) fn publish_report(&self, joined: u64, live: u64) {
        // Relaxed, both: figures to report; they guard nothing.
        self.joined.store(joined, Ordering::Relaxed);
        self.live.store(live, Ordering::Relaxed);
    }

    /// Publishes the length of the space, and the longest range it could ever hand out, when they
    /// change.
    pub(super) fn publish_limit(&self, capacity: u64, limit: u64) {
        // Relaxed, both: figures to report; they guard nothing.
        self.capacity.store(capacity, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Runs with the lock held, and publishes what reports are to see together: the length, and
    /// what is free.
    pub(super) fn resize<T>(&self, publish: impl FnOnce() -> T) -> T {
        self.resizes.change(publish)
    }

    /// The length of the space.
    #[cfg(not(loom))]
    pub(super) fn capacity(&self) -> u64 {
        // Relaxed: see `publish_limit`. Who learns that the space was resized sees it, by the
        // coherence of this one atomic.
        self.capacity.load(Ordering::Relaxed)
    }

    /// All that is there for reports.
    #[cfg(not(loom))]
    pub(super) fn report(&self) -> SpaceStats {
        // Relaxed, all: each is a figure for itself, but for what `resizes` holds together.
        self.resizes.look(|| SpaceStats {
            capacity: self.capacity(),
            free: self.free(),
            largest: self.joined.load(Ordering::Relaxed),
            live: self.live.load(Ordering::Relaxed),
        })
    }

    /// The longest range the space could ever hand out.
    #[inline]
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
    #[inline]
    pub(super) fn free(&self) -> u64 {
        // Relaxed: a figure to report; it guards nothing.
        self.free.load(Ordering::Relaxed)
    }
}

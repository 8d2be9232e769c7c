//! *Hint*: figures that the last holder of the lock published, for threads that only need to know
//! whether to try.
//!
//! A full store fails most requests, and a failure must not cost the lock. The hint is the size of
//! the largest free range, published before the lock is released. A reader without the lock sees
//! the value of some moment during its call, or one published by an operation that is still
//! running. In both cases the call can be ordered at that moment, when nothing longer was free. A
//! reader never sees a value below the truth of everything that *happened before* its call: the
//! publishing store of a free precedes the free's return, and coherence forbids reading anything
//! older.

use std::ptr;

use crate::sync::{AtomicU64, Ordering, SeqCounter, const_new};

/// Largest free range and free bytes, readable without the lock.
///
/// On cache lines of its own, so readers of the hint do not disturb the lock. Requests read the
/// first line. While [slots](crate::sync::CombiningMutex) are open, holders of the lock write only
/// the second one, so that the first stays in the caches of all processors.
#[repr(C, align(128))]
pub(super) struct Hint {
    largest: AtomicU64,
    limit: AtomicU64,
    /// For reports: the length of the space.
    capacity: AtomicU64,
    /// Orders changes of the length and of the free bytes, which must be read together.
    resizes: SeqCounter,
    figures: Figures,
}

/// The figures that each operation changes.
#[repr(align(64))]
struct Figures {
    free: AtomicU64,
    /// For reports: the longest free range, without what deferred ranges may coalesce with.
    coalesced: AtomicU64,
    /// For reports: allocations alive.
    live: AtomicU64,
}

/// Figures that a holder of the lock published for reports. They are of about one moment: a thread
/// may be storing the next ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceStats {
    pub(crate) capacity: u64,
    /// Bytes not in use.
    pub(crate) free: u64,
    /// The longest free range, without what deferred ranges may coalesce with.
    pub(crate) largest: u64,
    pub(crate) live: u64,
}

impl Hint {
    const_new! {
        pub(super) const fn new() -> Self {
            Hint {
                largest: AtomicU64::new(0),
                limit: AtomicU64::new(0),
                capacity: AtomicU64::new(0),
                resizes: SeqCounter::new(),
                figures: Figures {
                    free: AtomicU64::new(0),
                    coalesced: AtomicU64::new(0),
                    live: AtomicU64::new(0),
                },
            }
        }
    }

    /// Publishes the hint. The caller holds the lock, so there is one writer at a time.
    #[inline]
    pub(super) fn publish(&self, largest: u64) {
        // Relaxed: the hint guards no other memory. That a thread which learns of a free sees it
        // rests on the coherence of this one atomic, and on whatever notified the thread of the
        // free (it pairs with nothing here).
        self.largest.store(largest, Ordering::Relaxed);
    }

    /// Publishes the greatest bound of the largest free range, before threads may free ranges
    /// without the lock. The caller holds the lock.
    pub(super) fn publish_bound(&self) {
        // Relaxed: as in `publish`. A thread that frees a range without the lock has claimed an
        // entry, which was opened after this store: the threads that learn of its free see it.
        self.largest.store(self.limit(), Ordering::Relaxed);
    }

    /// Publishes the free bytes, and the figures that only reports read. The caller holds the lock.
    #[inline]
    pub(super) fn publish_figures(&self, free: u64, coalesced: u64, live: u64) {
        // Relaxed, all: as in `publish`, or figures to report, which guard nothing.
        self.figures.free.store(free, Ordering::Relaxed);
        self.figures.coalesced.store(coalesced, Ordering::Relaxed);
        self.figures.live.store(live, Ordering::Relaxed);
    }

    /// Publishes the length of the space, and the longest range that it could ever allocate, when
    /// they change.
    pub(super) fn publish_limit(&self, capacity: u64, limit: u64) {
        // Relaxed, both: figures to report; they guard nothing.
        self.capacity.store(capacity, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Runs `publish` with the lock held, and publishes together what reports read together: the
    /// length and the free bytes.
    pub(super) fn resize<T>(&self, publish: impl FnOnce() -> T) -> T {
        self.resizes.change(publish)
    }

    /// Returns the length of the space.
    pub(super) fn capacity(&self) -> u64 {
        // Relaxed: see `publish_limit`. A thread that learns of the resize sees it, by the
        // coherence of this one atomic.
        self.capacity.load(Ordering::Relaxed)
    }

    /// Returns the address of the largest free range, for readers in C++: one relaxed load.
    pub(super) fn largest_address(&self) -> *const u64 {
        // An atomic has the representation of its number.
        ptr::from_ref(&self.largest).cast()
    }

    /// Returns all figures for reports.
    pub(super) fn report(&self) -> SpaceStats {
        // Relaxed, all: the figures are independent, except for those that `resizes` keeps
        // together.
        self.resizes.look(|| SpaceStats {
            capacity: self.capacity(),
            free: self.free(),
            largest: self.figures.coalesced.load(Ordering::Relaxed),
            live: self.figures.live.load(Ordering::Relaxed),
        })
    }

    /// Returns the length of the longest range that the space could ever allocate.
    #[inline]
    pub(super) fn limit(&self) -> u64 {
        // Relaxed: see `publish_limit`.
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns an upper bound of the largest free range.
    #[inline]
    pub(super) fn largest(&self) -> u64 {
        // Relaxed: see `publish`.
        self.largest.load(Ordering::Relaxed)
    }

    /// Returns the free bytes of a recent moment.
    #[inline]
    pub(super) fn free(&self) -> u64 {
        // Relaxed: a figure to report; it guards nothing.
        self.figures.free.load(Ordering::Relaxed)
    }
}

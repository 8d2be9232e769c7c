//! *Transfers*: rounds in flight between the source and a cache.
//!
//! A trim finds rounds in caches and in the depot, but not those that threads are moving between
//! source and cache at that moment. A thread that starts such a transfer counts itself in one of
//! two counters, chosen by the parity of the number of trims so far, the *epoch*. The trim waits
//! until the transfers that started before it are finished. A transfer that finds that a trim has
//! intervened returns its rounds to the source, except the one that was requested.

use crate::sync::{AtomicUsize, Backoff, Ordering};

/// Counts the transfers in flight. On cache lines of its own.
#[repr(align(128))]
pub(crate) struct Transfers {
    /// The number of trims so far.
    epoch: AtomicUsize,
    /// Transfers in flight that began in even and in odd epochs.
    in_flight: [AtomicUsize; 2],
}

/// Counts a transfer in flight while it lives.
pub(crate) struct InFlight<'a> {
    counter: &'a AtomicUsize,
    /// The epoch in which it began.
    epoch: usize,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `wait`: rounds that were returned to the source are
        // there.
        self.counter.fetch_sub(1, Ordering::Release);
    }
}

impl Transfers {
    pub(crate) fn new() -> Self {
        Transfers {
            epoch: AtomicUsize::new(0),
            in_flight: [AtomicUsize::new(0), AtomicUsize::new(0)],
        }
    }

    /// Begins a transfer. Called under the owner's lock, so either a trim sees it or it sees the
    /// trim.
    pub(crate) fn begin(&self) -> InFlight<'_> {
        // Relaxed, both: ordered by the owner's lock.
        let epoch = self.epoch.load(Ordering::Relaxed);
        let counter = &self.in_flight[epoch % 2];
        counter.fetch_add(1, Ordering::Relaxed);
        InFlight { counter, epoch }
    }

    /// Returns whether a trim has intervened. Called under the owner's lock.
    pub(crate) fn was_trimmed(&self, in_flight: &InFlight<'_>) -> bool {
        // Relaxed: ordered by the owner's lock.
        self.epoch.load(Ordering::Relaxed) != in_flight.epoch
    }

    /// Begins the next epoch while all owners are stopped. Returns the epoch that ends.
    pub(crate) fn next_epoch(&self) -> usize {
        // Relaxed: ordered by the owners' locks.
        self.epoch.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until the transfers that began in this epoch are finished.
    pub(crate) fn wait(&self, epoch: usize) {
        let mut backoff = Backoff::default();
        // Acquire pairs with the Release in `InFlight::drop`.
        while self.in_flight[epoch % 2].load(Ordering::Acquire) != 0 {
            backoff.pause();
        }
    }

    /// Returns the number of trims so far.
    pub(crate) fn trims(&self) -> u64 {
        // Relaxed: a statistic.
        self.epoch.load(Ordering::Relaxed) as u64
    }

    /// Forgets the transfers in flight. For a forked child, in which their threads do not exist.
    pub(crate) fn reset_in_child(&self) {
        // Relaxed: the process has one thread.
        self.in_flight.iter().for_each(|in_flight| in_flight.store(0, Ordering::Relaxed));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_child_waits_for_no_transfer() {
        let transfers = Transfers::new();
        let before = transfers.begin();
        assert!(!transfers.was_trimmed(&before));
        let epoch = transfers.next_epoch();
        let after = transfers.begin();
        assert!(transfers.was_trimmed(&before) && !transfers.was_trimmed(&after));
        let in_flight = || transfers.in_flight.each_ref().map(|it| it.load(Ordering::Relaxed));
        assert_eq!((in_flight(), transfers.trims()), ([1, 1], 1));
        std::mem::forget([before, after]);
        transfers.reset_in_child();
        assert_eq!(in_flight(), [0, 0]);
        transfers.wait(epoch);
    }
}

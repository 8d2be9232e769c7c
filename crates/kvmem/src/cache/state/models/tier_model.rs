//! *Tier model*: fetches of keys from a tier that has version `key * 10` of each.

use crate::cache::state::pending_fetches::{FetchId, PendingFetches};
use crate::sync::{AtomicU64, Ordering};

pub(super) struct TierModel {
    pub(super) fetches: PendingFetches<u64, u64>,
    /// Values in memory, as bits of their keys.
    memory: AtomicU64,
    reads: AtomicU64,
}

impl TierModel {
    pub(super) fn new() -> Self {
        let (memory, reads) = (AtomicU64::new(0), AtomicU64::new(0));
        TierModel { fetches: PendingFetches::new(1), memory, reads }
    }

    fn read(&self, started: Vec<(FetchId, u64)>) {
        for (id, key) in started {
            self.fetches.leased(id, 1);
            // SeqCst: the model's memory is as the lock of a shard makes it.
            if self.memory.load(Ordering::SeqCst) & 1 << key == 0 {
                self.reads.fetch_add(1, Ordering::SeqCst);
                self.memory.fetch_or(1 << key, Ordering::SeqCst);
            }
            self.fetches.finish(id, Some(key * 10));
        }
    }

    pub(super) fn join(&self, keys: &[u64]) -> Vec<FetchId> {
        self.fetches.join(keys.iter(), |_, _| true)
    }

    /// Fetches as a look-up does.
    pub(super) fn get(&self, keys: &[u64]) {
        let ids = self.join(keys);
        self.read(self.fetches.start(&ids));
        self.fetches.wait(&ids);
        let values: Vec<_> = keys.iter().map(|key| Some(key * 10)).collect();
        assert_eq!(self.fetches.leave(&ids, false), values);
    }

    /// Has keys fetched in the background, and waits.
    pub(super) fn get_in_background(&self, keys: &[u64]) {
        let ids = self.join(keys);
        self.fetches.submit(&ids);
        self.fetches.wait(&ids);
        let values: Vec<_> = keys.iter().map(|key| Some(key * 10)).collect();
        assert_eq!(self.fetches.leave(&ids, false), values);
    }

    /// Has a key fetched in the background, and cancels that.
    pub(super) fn cancel(&self, key: u64) {
        let ids = self.join(&[key]);
        self.fetches.submit(&ids);
        let values = self.fetches.leave(&ids, false);
        assert!(values[0].is_none_or(|value| value == key * 10));
    }

    /// The thread in the background.
    pub(super) fn run(&self) {
        while let Some(batch) = self.fetches.next_batch() {
            self.read(batch);
        }
        assert!(self.fetches.thread_ended());
    }

    /// Verifies that no fetch is left, and that no key was read twice.
    pub(super) fn end(&self, max_reads: u64) {
        assert_eq!(self.fetches.len(), 0);
        assert!(self.reads.load(Ordering::SeqCst) <= max_reads);
    }
}

//! *Queue model*: the queue above a tier of small numbers.

use std::collections::HashMap;

use crate::sync::models::Arc;
use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::tier::write_behind::queue::WhenFull;
use crate::tier::write_behind::queue::{Change, Found, Made, Queue, QueueError, QueuedValue};

/// A value of one byte: its version, and the mark that a later one has superseded it.
#[derive(Clone)]
struct Version {
    version: u64,
    superseded: Arc<AtomicBool>,
}

impl QueuedValue for Version {
    fn bytes(&self) -> u64 {
        1
    }

    fn is_superseded(&self) -> bool {
        // Relaxed: as in the library; the lock of the queue orders it.
        self.superseded.load(Ordering::Relaxed)
    }
}

pub(super) struct QueueModel {
    queue: Queue<Version>,
    max_bytes: u64,
    tier: Mutex<HashMap<u8, u64>>,
    /// Whether the tier takes no values.
    pub(super) failing: bool,
}

impl QueueModel {
    /// Returns a model whose tier has version 1 of keys 1 and 2.
    pub(super) fn new(max_bytes: u64, when_full: WhenFull) -> Self {
        QueueModel {
            queue: Queue::new(max_bytes, when_full),
            max_bytes,
            tier: Mutex::new(HashMap::from([(1, 1), (2, 1)])),
            failing: false,
        }
    }

    pub(super) fn put(&self, key: u8, version: u64) -> Result<(), QueueError> {
        let superseded = Arc::new(AtomicBool::new(false));
        self.queue.put(&[key], Version { version, superseded })
    }

    /// Puts a version that a later change has superseded.
    pub(super) fn put_superseded(&self, key: u8, version: u64) {
        let superseded = Arc::new(AtomicBool::new(true));
        assert_eq!(self.queue.put(&[key], Version { version, superseded }), Ok(()));
    }

    /// Writes until the queue is closed and empty.
    pub(super) fn write(&self) {
        while let Some(batch) = self.queue.take() {
            let make = |key: u8, change: &Change<Version>| match change {
                Change::Store(_) if self.failing => {
                    self.tier.lock().remove(&key);
                    Made::Removed
                }
                Change::Store(value) => {
                    self.tier.lock().insert(key, value.version);
                    Made::Yes
                }
                Change::Remove => {
                    self.tier.lock().remove(&key);
                    Made::Yes
                }
            };
            let made: Vec<Made> =
                batch.iter().map(|taken| make(taken.key[0], &taken.change)).collect();
            self.queue.done(batch, &made);
            assert!(self.queue.stats().max_bytes <= self.max_bytes.max(1));
        }
    }

    pub(super) fn invalidate(&self, key: u8) {
        let removed: Result<(), ()> = self.queue.invalidate(&[key], || {
            self.tier.lock().remove(&key);
            Ok(())
        });
        assert_eq!(removed, Ok(()));
    }

    pub(super) fn clear(&self) {
        let cleared: Result<(), ()> = self.queue.clear(|| {
            self.tier.lock().clear();
            Ok(())
        });
        assert_eq!(cleared, Ok(()));
    }

    /// Looks a key up as a fetch does.
    pub(super) fn get(&self, key: u8) -> Option<u64> {
        match self.queue.find(std::iter::once(&[key][..])).remove(0) {
            Found::Value(value) => Some(value.version),
            Found::Nothing => None,
            Found::InTier => self.in_tier(key),
        }
    }

    pub(super) fn in_tier(&self, key: u8) -> Option<u64> {
        self.tier.lock().get(&key).copied()
    }

    pub(super) fn flush(&self) {
        self.queue.flush();
    }

    /// Returns how many values the queue and its writer hold.
    pub(super) fn held(&self) -> u64 {
        self.queue.stats().values
    }

    pub(super) fn close(&self, discard: bool) {
        self.queue.close(discard);
    }

    /// Verifies that the queue is empty, and that every value is accounted for.
    pub(super) fn end(&self) {
        let stats = self.queue.stats();
        assert_eq!((stats.values, stats.bytes, stats.removals), (0, 0, 0), "{stats:?}");
        let ended = stats.written + stats.replaced + stats.dropped + stats.failed + stats.rejected;
        assert_eq!(stats.evicted, ended, "{stats:?}");
    }
}

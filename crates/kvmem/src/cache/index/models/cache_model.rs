//! *Cache model*: a cache of one key and a lower tier, with the shard's own table of leases.

use super::super::leases::Leases;
use crate::sync::models::Arc;
use crate::sync::{AtomicBool, Mutex, Ordering};

/// The hash of the only key.
const HASH: u64 = 7;

/// The mark of a value on its way to the tier: a later value has superseded it.
type Mark = Arc<AtomicBool>;

struct Shard {
    value: Option<u64>,
    /// The value that was put last, or none if it was removed since. A lookup finds it or misses.
    latest: Option<u64>,
    leases: Leases<Mark>,
}

pub(super) struct CacheModel {
    shard: Mutex<Shard>,
    tier: Mutex<Option<u64>>,
}

impl Shard {
    fn supersede(&mut self, latest: Option<u64>) {
        self.latest = latest;
        if !self.leases.is_quiet() {
            // Relaxed: as in the library.
            self.leases.supersede(HASH, |mark| mark.store(true, Ordering::Relaxed));
        }
    }
}

impl CacheModel {
    /// Returns a model whose cache is empty and whose tier has `latest`.
    pub(super) fn new(latest: Option<u64>) -> Self {
        let shard = Shard { value: None, latest, leases: Leases::default() };
        CacheModel { shard: Mutex::new(shard), tier: Mutex::new(latest) }
    }

    pub(super) fn put(&self, value: u64) {
        let mut shard = self.shard.lock();
        shard.supersede(Some(value));
        shard.value = Some(value);
    }

    pub(super) fn evict(&self) {
        let mark = Arc::new(AtomicBool::new(false));
        let mut shard = self.shard.lock();
        let Some(value) = shard.value.take() else { return };
        let number = shard.leases.hand_over(HASH, mark.clone());
        drop(shard);
        let mut tier = self.tier.lock();
        // Relaxed: as in the library, which relies on the lock of the eviction sink for the order.
        if !mark.load(Ordering::Relaxed) {
            *tier = Some(value);
        }
        drop(tier);
        self.shard.lock().leases.handed_over(number, true);
    }

    pub(super) fn remove(&self) {
        let mut shard = self.shard.lock();
        shard.leases.block(HASH);
        shard.supersede(None);
        shard.value = None;
        drop(shard);
        *self.tier.lock() = None;
        self.shard.lock().leases.unblock(HASH, true);
    }

    /// Looks the key up, and checks a found value against the latest at that moment. Also returns
    /// whether a lease was unavailable or broken, so that a miss is allowed.
    pub(super) fn get(&self) -> (Option<u64>, bool) {
        let mut shard = self.shard.lock();
        if shard.value.is_some() {
            assert_eq!(shard.value, shard.latest);
            return (shard.value, false);
        }
        let Some(number) = shard.leases.lease(HASH) else { return (None, true) };
        drop(shard);
        let fetched = *self.tier.lock();
        let mut shard = self.shard.lock();
        let live = shard.leases.is_live(HASH, number);
        shard.leases.give_up(HASH, number);
        if live {
            assert!(fetched.is_none() || fetched == shard.latest, "a valid lease: {fetched:?}");
            if let Some(value) = fetched {
                shard.supersede(fetched);
                shard.value = Some(value);
            }
            return (fetched, false);
        }
        (shard.value, true)
    }

    /// Checks that the latest value is found after all threads have ended, in the cache or below
    /// it. If a removal ran, nothing may be found: it may have removed a value that was put and
    /// evicted in its middle.
    pub(super) fn end(&self, removed: bool) {
        let latest = self.shard.lock().latest;
        let (found, doubt) = self.get();
        assert!(
            !doubt && (found == latest || (removed && found.is_none())),
            "{found:?}, \
            {latest:?} is the latest"
        );
        let shard = self.shard.lock();
        assert!(shard.leases.is_quiet(), "{:?}", shard.leases.defect());
    }
}

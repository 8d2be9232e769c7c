//! Leases: what breaks them, when they are unavailable, and how a pin learns that it is superseded.

use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use super::{Lease, Leased};
use crate::cache::tests::{held, one_shard, pool};
use crate::cache::{KvCache, Pinned, Reservation};
use crate::tier::TierHints;

mod histories;

fn is_valid<K>(cache: &KvCache<K>, lease: &Lease<K>) -> bool {
    let (hash, number) = (lease.hash(), lease.number());
    cache.inner.shard(hash).change_leases(|leases| leases.is_live(hash, number))
}

fn lease<K: Hash + Eq>(cache: &KvCache<K>, key: &K) -> Lease<K> {
    match cache.lease(key) {
        Leased::Lease(lease) => lease,
        Leased::Present(_) => panic!("there is a value"),
        Leased::Unavailable => panic!("no lease is available"),
    }
}

fn is_busy<K: Hash + Eq>(cache: &KvCache<K>, key: &K) -> bool {
    matches!(cache.lease(key), Leased::Unavailable)
}

/// Returns a reservation that contains these bytes.
fn fetched<K: Hash + Eq>(cache: &KvCache<K>, key: K, bytes: &[u8]) -> Reservation<K> {
    let mut room = cache.reserve(key, bytes.len()).unwrap();
    room.bytes_mut().copy_from_slice(bytes);
    room
}

#[test]
fn a_lease_keeps_the_cache() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| builder);
    let last = lease(&cache, &1);
    let room = fetched(&cache, 1, b"one");
    drop(cache);
    assert_eq!(room.commit_fetched(last).unwrap().bytes(), b"one");
    assert_eq!(pool.metrics().allocated, 0);
}

#[test]
fn a_value_that_is_present_counts_as_used() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| builder.max_blocks(2));
    cache.insert(1, b"1").unwrap();
    cache.insert(2, b"2").unwrap();
    assert!(matches!(cache.lease(&1), Leased::Present(_)));
    cache.insert(3, b"3").unwrap();
    assert_eq!(held(&cache, 0..4), [1, 3]);
}

#[test]
fn pins_tell_when_they_are_superseded() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| builder);
    let get = |key: u64| {
        cache.insert(key, b"old").unwrap();
        cache.get(&key).unwrap()
    };
    let pins: Vec<Pinned<u64>> = (0..4).map(get).collect();
    assert!(!pins.iter().any(Pinned::is_superseded));
    cache.insert(0, b"new").unwrap();
    assert!(cache.remove_in_memory(&1).unwrap().is_superseded());
    assert_eq!(
        pins.iter().map(Pinned::is_superseded).collect::<Vec<_>>(),
        [true, true, false, false]
    );
    cache.clear_in_memory();
    assert!(pins.iter().all(Pinned::is_superseded));
    cache.check().unwrap();
}

/// Returns a cache with this eviction sink. The sink gets a reference to the cache, but does not
/// keep it alive.
fn with_sink<K: Hash + Eq + Send + Sync + 'static>(
    room: usize,
    take: impl Fn(&KvCache<K>, Pinned<K>) -> Result<(), ()> + Send + Sync + 'static,
) -> Arc<KvCache<K>> {
    let itself: Arc<OnceLock<Weak<KvCache<K>>>> = Arc::default();
    let found = Arc::clone(&itself);
    let builder = KvCache::builder(&pool(room)).shards(1).passing_to(move |pinned| {
        let cache = found.get().expect("it was set");
        cache.upgrade().is_none_or(|cache| take(&cache, pinned).is_ok())
    });
    let cache = Arc::new(builder.build().unwrap());
    assert!(itself.set(Arc::downgrade(&cache)).is_ok());
    cache
}

#[test]
fn a_key_that_the_sink_failed_to_store_is_not_leased_until_the_cache_is_cleared() {
    let cache = with_sink(64 << 10, |_, pinned| match *pinned.key() {
        1 => Err(()),
        2 => panic!("a fault of the sink"),
        _ => Ok(()),
    });
    for key in 0..3 {
        cache.insert(key, b"value").unwrap();
        let _ = catch_unwind(AssertUnwindSafe(|| cache.evict_to(0)));
    }
    assert_eq!([0, 1, 2].map(|key| is_busy(&cache, &key)), [false, true, true]);
    assert_eq!((cache.stats().evictions, cache.stats().sink_failures), (3, 2));
    // Insertions and lookups still work.
    cache.insert(1, b"value").unwrap();
    assert!(matches!(cache.lease(&1), Leased::Present(_)));
    drop(cache.remove(&1));
    assert!(is_busy(&cache, &1));
    assert_eq!(cache.clear_with(|| Err("not now")), Err("not now"));
    assert!(is_busy(&cache, &0) && is_busy(&cache, &1));
    cache.clear_with(|| Ok::<_, ()>(())).unwrap();
    assert_eq!([0, 1, 2].map(|key| is_busy(&cache, &key)), [false; 3]);
    cache.check().unwrap();
}

#[test]
fn no_key_is_leased_while_the_lower_tier_is_invalidated() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| builder);
    cache.insert(1, b"old").unwrap();
    let before = lease(&cache, &2);
    let found = cache.remove_with(&1, || {
        assert!(!cache.contains(&1) && is_busy(&cache, &1) && !is_busy(&cache, &2));
        // This insertion is later than the removal.
        cache.insert(1, b"new").map_err(drop)
    });
    assert_eq!(found.unwrap().unwrap().bytes(), b"old");
    assert_eq!(cache.get(&1).unwrap().bytes(), b"new");
    cache
        .clear_with(|| {
            assert!(!is_valid(&cache, &before) && is_busy(&cache, &1) && is_busy(&cache, &2));
            Ok::<_, ()>(())
        })
        .unwrap();
    assert!(!is_busy(&cache, &1) && !is_busy(&cache, &2));
    // If the invalidation fails, the key stays blocked: the lower tier may have an old value.
    assert_eq!(cache.remove_with(&1, || Err(7)).map(drop), Err(7));
    assert!(
        catch_unwind(AssertUnwindSafe(|| cache.remove_with(&2, || -> Result<(), ()> { panic!() })))
            .is_err()
    );
    assert_eq!([1, 2, 3].map(|key| is_busy(&cache, &key)), [true, true, false]);
    cache.check().unwrap();
}

/// Keys that all have the same hash.
#[derive(PartialEq, Eq, Debug, Clone, Copy)]
struct Same(u64);

impl Hash for Same {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[test]
fn keys_of_one_hash_break_more_leases_and_supersede_no_other_values() {
    let marks: Arc<Mutex<Vec<(u64, bool)>>> = Arc::default();
    let told = Arc::clone(&marks);
    let cache = with_sink(64 << 10, move |cache, pinned: Pinned<Same>| {
        // An insertion under another key, and a removal of its own.
        cache.insert(Same(10), b"10").unwrap();
        told.lock().unwrap().push((pinned.key().0, pinned.is_superseded()));
        drop(cache.remove(pinned.key()));
        told.lock().unwrap().push((pinned.key().0, pinned.is_superseded()));
        Ok(())
    });
    cache.insert(Same(1), b"long").unwrap();
    // The value that the sink inserts may stay.
    cache.evict_to(2);
    assert_eq!(*marks.lock().unwrap(), [(1, false), (1, true)]);
    // A lease of another key with this hash is broken needlessly; no lease is kept wrongly.
    let lease = lease(&cache, &Same(2));
    let room = fetched(&cache, Same(10), b"fetched");
    assert_eq!(
        room.commit_fetched(lease).unwrap_err().unwrap().bytes(),
        b"10",
        "it takes no value's place"
    );
    let lease = self::lease(&cache, &Same(2));
    cache.insert(Same(3), b"3").unwrap();
    assert!(!is_valid(&cache, &lease));
    drop(lease);
    cache.check().unwrap();
}

#[test]
fn a_value_that_is_inserted_while_an_expired_one_is_evicted_is_present() {
    let past = TierHints { ttl: Some(Duration::ZERO), ..TierHints::default() };
    for newer in [TierHints::default(), past] {
        let cache = with_sink(64 << 10, move |cache, pinned: Pinned<u64>| {
            if pinned.bytes() == b"expired" {
                cache.insert_with(1, b"newer", newer).map_err(drop)?;
            }
            Ok(())
        });
        cache.insert_with(1, b"expired", past).unwrap();
        let found = cache.lease(&1);
        if newer.ttl.is_some() {
            assert!(matches!(found, Leased::Lease(_)), "it has expired, too");
        } else {
            let Leased::Present(pinned) = found else { panic!("there is a value") };
            assert_eq!(pinned.bytes(), b"newer");
        }
        assert_eq!(cache.stats().evictions, 1);
    }
}

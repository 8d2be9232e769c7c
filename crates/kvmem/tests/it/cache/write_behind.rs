//! The queue between a cache and its lower tier: its bound, what is found meanwhile, and its end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvmem::cache::KvCache;
use kvmem::pool::Pool;
use kvmem::tier::{Lookup, OnDrop, Tier, TierValue, WhenFull, WriteBehind, WriteBehindBuilder};
use kvmem_testkit::random::Random;

use super::below::{Below, Mood};
use super::pool;
use crate::child::forked;

const VALUE: usize = 1000;

/// Returns the bytes of a key.
fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

fn value(key: u64, version: u64) -> Vec<u8> {
    (key << 32 | version).to_le_bytes().into_iter().cycle().take(VALUE).collect()
}

/// Returns a cache of `blocks` values above a queue above a tier.
fn behind(
    pool: &Pool,
    blocks: u64,
    settings: impl FnOnce(WriteBehindBuilder) -> WriteBehindBuilder,
) -> (Arc<Below>, Arc<WriteBehind>, KvCache<u64>) {
    behind_in(pool, 1, blocks, settings)
}

/// Returns such a cache of several shards.
fn behind_in(
    pool: &Pool,
    shards: usize,
    blocks: u64,
    settings: impl FnOnce(WriteBehindBuilder) -> WriteBehindBuilder,
) -> (Arc<Below>, Arc<WriteBehind>, KvCache<u64>) {
    let below = Arc::new(Below::default());
    let behind = settings(WriteBehind::builder(pool, below.clone())).build().unwrap();
    let behind = Arc::new(behind);
    let tier: Arc<dyn Tier> = Arc::clone(&behind) as _;
    let cache = KvCache::builder(pool).shards(shards).max_blocks(blocks).lower_tier(tier).build();
    (below, behind, cache.unwrap())
}

fn get(cache: &KvCache<u64>, key: u64) -> Option<Vec<u8>> {
    cache.get_batch(&[key])[0].as_ref().map(|pinned| pinned.to_vec())
}

#[test]
fn values_in_the_queue_are_found_and_written_in_the_order_of_eviction() {
    let pool = pool(1 << 20);
    let (below, behind, cache) = behind(&pool, 4, |builder| builder.max_bytes(100 * 1024));
    below.stop(true);
    cache.insert(0, &value(0, 0)).unwrap();
    cache.evict_to(0);
    // The writer has the first value, and those that come meanwhile make one batch.
    below.wait_for(1);
    for key in 1..20 {
        cache.insert(key, &value(key, 0)).unwrap();
    }
    for key in 0..16 {
        assert_eq!(get(&cache, key), Some(value(key, 0)), "{key}");
    }
    assert!(below.state().values.is_empty() && below.state().reads.is_empty());
    let may_have = |key: u64| behind.may_have(&key.to_le_bytes());
    assert_eq!([0, 15, 20].map(may_have), [true, true, false]);
    assert!(behind.stats().hits >= 15, "{:?}", behind.stats());
    below.stop(false);
    behind.flush();
    assert_eq!([0, 15, 20].map(may_have), [true, true, false]);
    let keys: Vec<u64> = (1..10).collect();
    assert_eq!(below.state().batches[0], [0]);
    assert!(below.state().batches[1].starts_with(&keys), "{:?}", below.state().batches);
    let stats = behind.stats();
    assert_eq!((stats.values, stats.bytes, stats.removals), (0, 0, 0), "{stats:?}");
    cache.check().unwrap();
}

#[test]
fn a_full_queue_makes_insertions_wait() {
    let pool = pool(1 << 20);
    let (below, behind, cache) = behind(&pool, 1, |builder| builder.max_bytes(3 * 1024));
    below.stop(true);
    let inserted = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for key in 0..20 {
                cache.insert(key, &value(key, 0)).unwrap();
            }
            inserted.store(true, Ordering::Relaxed);
        });
        while behind.stats().waits == 0 {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(20));
        assert!(!inserted.load(Ordering::Relaxed));
        assert!(!behind.flush_until(Instant::now() + Duration::from_millis(5)));
        below.stop(false);
    });
    assert!(behind.flush_until(Instant::now() + Duration::from_secs(60)));
    let stats = behind.stats();
    assert!(stats.max_bytes <= 3 * 1024 && stats.waits > 0, "{stats:?}");
    assert_eq!((stats.evicted, stats.written, below.state().values.len()), (19, 19, 19));
}

#[test]
fn a_full_queue_drops_values_and_older_ones_of_their_keys() {
    let pool = pool(1 << 20);
    let settings = |builder: WriteBehindBuilder| builder.max_bytes(2048).when_full(WhenFull::Drop);
    let (below, behind, cache) = behind(&pool, 1, settings);
    for key in 0..10 {
        cache.insert(key, &value(key, 0)).unwrap();
        behind.flush();
    }
    cache.evict_to(0);
    behind.flush();
    assert_eq!(below.state().values.len(), 10);
    below.stop(true);
    for key in 0..10 {
        cache.insert(key, &value(key, 1)).unwrap();
    }
    let dropped = behind.stats().dropped;
    assert!((6..9).contains(&dropped), "{dropped}");
    below.stop(false);
    behind.flush();
    cache.evict_to(0);
    behind.flush();
    let stats = behind.stats();
    let found: Vec<u64> = (0..10).filter(|key| below.state().values.contains_key(key)).collect();
    assert_eq!(found.len() as u64 + stats.dropped, 10, "{stats:?}");
    assert!(found.iter().all(|&key| below.state().values[&key] == value(key, 1)));
    assert_eq!(stats.evicted, stats.written + stats.dropped);
}

/// The queue may have all of the pool: an insertion that finds nothing to evict waits for it.
#[test]
fn an_insertion_waits_for_values_that_are_being_written() {
    let pool = pool(64 << 10);
    let settings = |builder: WriteBehindBuilder| builder.max_bytes(1 << 30);
    let (below, behind, cache) = behind(&pool, 1000, settings);
    thread::scope(|scope| {
        below.stop(true);
        scope.spawn(|| {
            // While the pool is full of values that wait.
            while behind.stats().bytes < 32 << 10 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(20));
            below.stop(false);
        });
        for key in 0..500 {
            cache.insert(key, &value(key, 0)).unwrap();
        }
    });
    assert_eq!(get(&cache, 0), Some(value(0, 0)));
    assert_eq!(cache.stats().insertion_failures, 0);
}

#[test]
fn a_tier_that_fails_or_panics_loses_values_and_never_an_older_one_comes_back() {
    for mood in [Mood::Fails, Mood::Panics] {
        let pool = pool(1 << 20);
        let (below, behind, cache) = behind(&pool, 1, |builder| builder);
        cache.insert(1, &value(1, 0)).unwrap();
        cache.evict_to(0);
        behind.flush();
        below.state().storing = mood;
        cache.insert(1, &value(1, 1)).unwrap();
        cache.evict_to(0);
        behind.flush();
        assert!(!below.state().values.contains_key(&1), "the older one was removed");
        assert_eq!(get(&cache, 1), None);
        // It cannot even be removed.
        cache.insert(2, &value(2, 0)).unwrap();
        below.state().values.insert(2, value(2, 9));
        below.state().removing = mood;
        cache.evict_to(0);
        behind.flush();
        assert!(below.state().values.contains_key(&2));
        assert_eq!(get(&cache, 2), None);
        let stats = behind.stats();
        assert_eq!((stats.failed, stats.untrusted), (2, 1), "{stats:?}");
        assert_eq!(stats.panics > 0, mood == Mood::Panics, "{stats:?}");
        let error = behind.last_error().unwrap();
        assert!(error.contains("the tier fails") || error.contains("the tier panics"), "{error}");
        // The writer lives, and a sync tries the removal again.
        (below.state().storing, below.state().removing) = (Mood::Works, Mood::Works);
        behind.sync().unwrap();
        assert!(below.state().values.is_empty() && behind.stats().untrusted == 0);
        cache.insert(2, &value(2, 1)).unwrap();
        cache.evict_to(0);
        behind.flush();
        assert_eq!(get(&cache, 2), Some(value(2, 1)));
    }
}

#[test]
fn removals_take_effect_at_once() {
    let pool = pool(1 << 20);
    let (below, behind, cache) = behind(&pool, 1, |builder| builder.max_bytes(100 * 1024));
    for key in 0..8 {
        cache.insert(key, &value(key, 0)).unwrap();
    }
    cache.evict_to(0);
    for key in 0..4 {
        assert!(cache.remove(&key).unwrap().is_none());
        assert!(get(&cache, key).is_none() && !below.state().values.contains_key(&key));
    }
    assert_eq!(get(&cache, 7), Some(value(7, 0)));
    cache.clear().unwrap();
    assert!((0..8).all(|key| get(&cache, key).is_none()) && below.state().values.is_empty());
    // A removal that fails, until all is cleared.
    cache.insert(1, &value(1, 1)).unwrap();
    cache.evict_to(0);
    behind.flush();
    below.state().removing = Mood::Fails;
    cache.remove(&1).unwrap_err();
    cache.clear().unwrap_err();
    assert!(get(&cache, 1).is_none() && behind.stats().untrusted == u64::MAX);
    assert_eq!(behind.look_up(&[&key(1), &key(2)]), [Lookup::Missing; 2]);
    below.state().removing = Mood::Works;
    cache.clear().unwrap();
    assert_eq!(behind.stats().untrusted, 0);
}

#[test]
fn a_drop_writes_the_queue_or_discards_it() {
    for on_drop in [OnDrop::Write, OnDrop::Discard] {
        let pool = pool(1 << 20);
        let settings =
            |builder: WriteBehindBuilder| builder.max_bytes(100 * 1024).on_drop(on_drop).writers(2);
        let (below, behind, cache) = behind(&pool, 100, settings);
        below.state().values = (0..30).map(|key| (key, value(key, 0))).collect();
        below.stop(true);
        // Each writer has one value, so that the others are in the queue when it ends.
        for key in 0..2 {
            cache.insert(key, &value(key, 1)).unwrap();
            cache.evict_to(0);
            below.wait_for(key as usize + 1);
        }
        for key in 2..30 {
            cache.insert(key, &value(key, 1)).unwrap();
        }
        cache.evict_to(0);
        assert_eq!(behind.stats().values, 30);
        let full = pool.metrics().allocated;
        let queue = Arc::downgrade(&behind);
        thread::scope(|scope| {
            scope.spawn(|| {
                // The tier goes on once the drop has begun, or has discarded.
                while match on_drop {
                    OnDrop::Write => queue.strong_count() > 0,
                    OnDrop::Discard => pool.metrics().allocated > full / 10,
                } {
                    thread::yield_now();
                }
                below.stop(false);
            });
            drop((behind, cache));
        });
        let state = below.state();
        assert!(state.values.iter().all(|(&key, found)| *found == value(key, 1)));
        match on_drop {
            OnDrop::Write => assert_eq!(state.values.len(), 30),
            OnDrop::Discard => assert_eq!(state.values.len(), 2),
        }
        drop(state);
        assert_eq!(pool.metrics().allocated, 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_child_has_no_writers_and_its_calls_return() {
    let pool = pool(1 << 20);
    let (below, behind, cache) = behind(&pool, 2, |builder| builder.max_bytes(100 * 1024));
    below.stop(true);
    for key in 0..10 {
        cache.insert(key, &value(key, 0)).unwrap();
    }
    let pinned = cache.get_in_memory(&9).unwrap();
    let wrong = forked(|| {
        let calls = [
            behind.store(&[TierValue::pinned(&key(9), &pinned)])[0].is_err(),
            behind.look_up(&[&key(1)]) == [Lookup::Missing],
            behind.remove(&[&key(1)]).is_err() && behind.clear().is_err() && behind.sync().is_err(),
            !behind.flush_until(Instant::now()),
            behind.stats().evicted == 0 && behind.last_error().is_none(),
            get(&cache, 1).is_none(),
        ];
        behind.flush();
        let failed = calls.into_iter().position(|right| !right).map_or(0, |at| at as i32 + 1);
        // The drops of the child free nothing and wait for nothing.
        drop((behind.clone(), cache.clone()));
        failed
    });
    assert_eq!(wrong, 0);
    below.stop(false);
    behind.flush();
    assert_eq!(below.state().values.len(), 8);
}

/// Threads with keys of their own insert, remove and look up above a tier that fails at times: a
/// value that is found is the latest. Of the others' keys they find no version older than one that
/// was put or removed before.
#[test]
fn random_histories_find_the_latest_value_or_nothing() {
    for seed in 0..6 {
        let when_full = if seed % 2 == 0 { WhenFull::Wait } else { WhenFull::Drop };
        let failing = seed >= 4;
        let pool = pool(256 << 10);
        let settings = |builder: WriteBehindBuilder| {
            builder.max_bytes(8 << 10).when_full(when_full).writers(1 + seed as usize % 3)
        };
        let (below, behind, cache) = behind_in(&pool, 1 + seed as usize % 2 * 3, 20, settings);
        let changed: Vec<AtomicU64> = (0..300).map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (cache, below, changed) = (&cache, &below, &changed);
                scope.spawn(move || {
                    let mut random = Random::new(seed * 10 + thread);
                    let mut latest: HashMap<u64, u64> = HashMap::new();
                    for version in 1..=1500 {
                        let key = thread * 100 + random.below(30);
                        match random.below(10) {
                            0 => {
                                let removed = cache.remove(&key);
                                assert!(removed.is_ok() || failing);
                                latest.remove(&key);
                                changed[key as usize].store(version, Ordering::SeqCst);
                            }
                            1..5 => {
                                cache.insert(key, &value(key, version)).unwrap();
                                latest.insert(key, version);
                                changed[key as usize].store(version, Ordering::SeqCst);
                            }
                            5 if failing => {
                                let mood = random.below(4);
                                let mood = if mood == 0 { Mood::Fails } else { Mood::Works };
                                below.state().storing = mood;
                                below.state().removing = mood;
                            }
                            5 => {
                                cache.evict_to(cache.bytes() / 2);
                            }
                            6 => {
                                let key = random.below(300);
                                let known = changed[key as usize].load(Ordering::SeqCst);
                                let found = get(cache, key).map(|bytes| {
                                    let bits = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                                    assert_eq!(bytes, value(key, bits as u32 as u64));
                                    bits as u32 as u64
                                });
                                assert!(found.is_none_or(|found| found >= known), "{key}");
                            }
                            _ => {
                                let found = get(cache, key);
                                let known = latest.get(&key).map(|&version| value(key, version));
                                assert!(found.is_none() || found == known, "{key}");
                            }
                        }
                    }
                });
            }
        });
        (below.state().storing, below.state().removing) = (Mood::Works, Mood::Works);
        cache.evict_to(0);
        behind.flush();
        let stats = behind.stats();
        assert!(stats.max_bytes <= 8 << 10 && stats.values == 0, "{stats:?}");
        let ended = stats.written + stats.replaced + stats.dropped + stats.failed + stats.rejected;
        assert_eq!(stats.evicted, ended, "{stats:?}");
        cache.clear().unwrap();
        assert!((0..300).all(|key| get(&cache, key).is_none()));
        cache.check().unwrap();
        drop((cache, behind));
        assert_eq!(pool.metrics().allocated, 0);
    }
}

/// One thread, so that its own lookups never meet a key in flight: nothing is ever lost.
#[test]
fn what_one_thread_has_put_it_finds() {
    let pool = pool(256 << 10);
    let (_, behind, cache) = behind(&pool, 8, |builder| builder.max_bytes(4 << 10).writers(2));
    let mut random = Random::new(7);
    let mut latest: HashMap<u64, u64> = HashMap::new();
    for version in 1..=5000 {
        let key = random.below(40);
        match random.below(8) {
            0 => {
                drop(cache.remove(&key).unwrap());
                latest.remove(&key);
            }
            1..4 => {
                cache.insert(key, &value(key, version)).unwrap();
                latest.insert(key, version);
            }
            4 if random.once_in(50) => {
                cache.clear().unwrap();
                latest.clear();
            }
            _ => {
                let known = latest.get(&key).map(|&version| value(key, version));
                assert_eq!(get(&cache, key), known, "{key}");
            }
        }
    }
    assert!(behind.stats().waits + behind.stats().hits > 0);
    assert_eq!(behind.stats().failed + behind.stats().dropped, 0);
}

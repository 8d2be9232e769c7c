//! Figures, hints, reservations and leases.

use std::cell::Cell;
use std::hash::BuildHasher;
use std::time::Duration;

use super::{held, one_shard, pool};
use crate::cache::leases::Leased;
use crate::cache::{KvCache, KvCacheError, KvCacheStats};
use crate::tier::{DataType, PinnedValue, Priority, TierHints};

#[test]
fn figures_count_each_call_once_over_all_shards() {
    let pool = pool(64 << 10);
    let cache = KvCache::<u64>::builder(&pool).shards(8).seed(7).max_blocks(40).build().unwrap();
    assert_eq!(cache.stats(), KvCacheStats::default());
    assert_eq!(cache.stats().hit_rate(), 0.0);
    for key in 0..60 {
        cache.insert(key, &[1; 100]).unwrap();
    }
    let there = held(&cache, 0..60);
    there[..30].iter().for_each(|key| assert!(cache.get_in_memory(key).is_some()));
    (100..110).for_each(|key| assert!(cache.get_in_memory(&key).is_none()));
    there[..5].iter().for_each(|&key| cache.insert(key, &[2; 50]).unwrap());
    there[5..8].iter().for_each(|key| drop(cache.remove_in_memory(key)));
    let expected = KvCacheStats {
        blocks: 37,
        bytes: 32 * 100 + 5 * 50,
        hits: 30,
        misses: 10,
        insertions: 65,
        // A full cache evicts the value of the same key first.
        replacements: 0,
        evictions: 25,
        removals: 3,
        ..KvCacheStats::default()
    };
    assert_eq!(cache.stats(), expected);
    assert_eq!(cache.stats().hit_rate(), 0.75);
    assert!(!cache.is_empty() && cache.len() == 37);
    cache.insert(there[20], &[3; 50]).unwrap();
    assert_eq!((cache.stats().replacements, cache.stats().insertions), (1, 66));
    // A value that was fetched comes too late.
    let Leased::Lease(lease) = cache.lease(&500) else { panic!("there is no value") };
    let fetched = cache.reserve(500, 50).unwrap();
    cache.insert(500, b"newer").unwrap();
    assert_eq!(fetched.commit_fetched(lease).unwrap_err().unwrap().bytes(), b"newer");
    assert_eq!((cache.stats().superseded, cache.stats().insertions), (1, 67));
    cache.clear_in_memory();
    assert_eq!((cache.stats().removals, cache.stats().bytes), (41, 0));
    assert!(cache.is_empty());
}

#[test]
fn an_insertion_that_finds_nothing_to_evict_fails_and_is_counted() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| builder.max_blocks(2).max_bytes(300));
    let pins: Vec<_> = (0..2).map(|key| cache.reserve(key, 100).unwrap().commit()).collect();
    for failures in 1..=3 {
        let failed = cache.insert(7, &[7; 50]);
        let expected = KvCacheError::NothingToEvict { requested: 50, blocks: 2, bytes: 200 };
        assert_eq!((failed, cache.stats().insertion_failures), (Err(expected), failures));
    }
    let too_large = KvCacheError::TooLarge { requested: 301, limit: 300 };
    assert_eq!(cache.insert(7, &[7; 301]), Err(too_large));
    assert_eq!(cache.insert(7, &[]), Err(KvCacheError::Empty));
    drop(pins);
    cache.insert(7, &[7; 300]).unwrap();
    assert_eq!((held(&cache, 0..9), cache.stats().insertion_failures), (vec![7], 3));
}

#[test]
fn keys_are_spread_over_all_shards() {
    let pool = pool(64 << 10);
    let cache = KvCache::<u64>::builder(&pool).shards(16).seed(7).build().unwrap();
    let mut counts = [0; 16];
    for key in 0..1600_u64 {
        let shard = cache.inner.shard(cache.inner.hasher.hash_one(key));
        let at = cache.inner.shards.iter().position(|other| std::ptr::eq(other, shard));
        counts[at.expect("one of them")] += 1;
    }
    assert!(counts.iter().all(|count| (50..200).contains(count)), "{counts:?}");
}

#[test]
fn a_reservation_has_the_hints_that_were_set_last() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| builder);
    let hour = Duration::from_secs(3600);
    let all = TierHints {
        priority: Priority::MAX,
        ttl: Some(hour),
        depth: 5,
        data_type: DataType::Float16,
    };
    for first in [TierHints::default(), all] {
        for second in [
            TierHints::default(),
            TierHints { priority: Priority::MAX, ..TierHints::default() },
            TierHints { ttl: Some(hour), depth: 7, ..TierHints::default() },
            all,
        ] {
            let mut room = cache.reserve(1, 10).unwrap();
            room.set_hints(first);
            room.set_hints(second);
            let (is_forked, pinned) = (room.is_forked(), room.commit());
            let hints = pinned.hints();
            assert!(!is_forked && hints.ttl.is_some() == second.ttl.is_some());
            assert!(hints.ttl.is_none_or(|left| left <= hour && left > hour / 2));
            assert_eq!(TierHints { ttl: second.ttl, ..hints }, second);
            assert!(cache.get_in_memory(&1).is_some(), "{second:?}");
        }
    }
    for (depth, expected) in [(0, 0), (9, 9), (u32::MAX, (1 << 29) - 1)] {
        let mut room = cache.reserve(1, 10).unwrap();
        room.set_hints(TierHints { ttl: None, ..all });
        room.set_depth(depth);
        let expected = TierHints { depth: expected, ttl: None, ..all };
        assert_eq!(room.commit().hints(), expected);
    }
}

#[test]
fn a_value_whose_time_has_passed_is_a_miss() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| builder);
    let past = TierHints { ttl: Some(Duration::ZERO), ..TierHints::default() };
    cache.insert_with(1, b"short", past).unwrap();
    cache.insert(2, b"long").unwrap();
    assert_eq!(held(&cache, 0..9), [2]);
    assert!(cache.get_in_memory(&1).is_none() && cache.get_in_memory(&2).is_some());
    assert_eq!((cache.stats().hits, cache.stats().misses, cache.len_in_memory()), (1, 1, 2));
    assert!(cache.remove_in_memory(&1).is_none(), "its bytes are free, and it is no value");
    assert_eq!((cache.len_in_memory(), cache.stats().removals), (1, 1));
    // A lease of its key evicts it.
    cache.insert_with(1, b"short", past).unwrap();
    assert!(matches!(cache.lease(&1), Leased::Lease(_)));
    assert_eq!((cache.len_in_memory(), cache.stats().evictions, cache.bytes()), (1, 1, 4));
    cache.check().unwrap();
}

#[test]
fn a_lease_ends_when_it_is_dropped() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| builder);
    let Leased::Lease(lease) = cache.lease(&1) else { panic!("there is no value") };
    let (hash, number) = (lease.hash(), lease.number());
    let is_live = || cache.inner.shard(hash).change_leases(|leases| leases.is_live(hash, number));
    assert!(is_live());
    drop(lease);
    assert!(!is_live());
}

#[test]
fn a_tier_learns_of_a_pin_that_is_superseded() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| builder);
    let pinned = cache.reserve(1, 10).unwrap().commit();
    let seen: &dyn PinnedValue = &pinned;
    let kept = seen.pin();
    assert!(!seen.is_superseded() && !kept.is_superseded());
    cache.insert(1, b"later").unwrap();
    assert!(seen.is_superseded() && kept.is_superseded());
    assert_eq!((kept.bytes().len(), kept.memory_bytes()), (10, 10));
}

thread_local! {
    /// Clones of [`Cloned`] that this thread has made.
    static CLONES: Cell<usize> = const { Cell::new(0) };
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Cloned(u64);

impl Clone for Cloned {
    fn clone(&self) -> Self {
        CLONES.set(CLONES.get() + 1);
        Cloned(self.0)
    }
}

#[test]
fn a_look_up_that_needs_no_tier_clones_no_key() {
    let pool = pool(64 << 10);
    let cache = KvCache::<Cloned>::builder(&pool).build().unwrap();
    cache.insert(Cloned(1), b"one").unwrap();
    let keys = [Cloned(1), Cloned(2)];
    assert!(cache.get(&keys[0]).is_some() && cache.get(&keys[1]).is_none());
    let found = cache.get_batch(&keys);
    assert!(found[0].is_some() && found[1].is_none());
    // Without a tier there is nothing to wait for.
    let fetching = cache.start_fetch(&keys);
    assert!(fetching.is_done());
    let found = fetching.wait();
    assert!(found[0].is_some() && found[1].is_none());
    assert_eq!(CLONES.get(), 0);
}

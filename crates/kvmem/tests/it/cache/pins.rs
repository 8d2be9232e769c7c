//! Pins, reservations, and drops in any order.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvmem::cache::KvCache;
use kvmem::cache::{KvCacheError, Pinned, Reservation};

use super::{held, one_shard, pool};

#[test]
fn pinned_values_stay_and_unpinned_values_are_evicted() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| builder.max_blocks(3));
    for key in 0..3 {
        cache.insert(key, &[key as u8; 100]).unwrap();
    }
    let pins: Vec<Pinned<u64>> = (0..3).filter_map(|key| cache.get(&key)).collect();
    let failed = cache.insert(3, &[3; 10]);
    assert_eq!(failed, Err(KvCacheError::NothingToEvict { requested: 10, blocks: 3, bytes: 300 }));
    assert_eq!(cache.stats().insertion_failures, 1);
    // A second pin on the same value keeps it too.
    let second = pins[1].clone();
    drop(pins);
    cache.insert(3, &[3; 10]).unwrap();
    cache.insert(4, &[4; 10]).unwrap();
    assert_eq!(held(&cache, 0..9), [1, 3, 4]);
    assert_eq!((second.key(), second.bytes()), (&1, &[1; 100][..]));
}

#[test]
fn a_value_that_is_removed_or_replaced_while_it_is_pinned_stays_as_it_is() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| builder);
    cache.insert(1, &[1; 1000]).unwrap();
    let first = cache.get(&1).unwrap();
    cache.insert(1, &[2; 500]).unwrap();
    let second = cache.remove_in_memory(&1).unwrap();
    assert!(cache.get(&1).is_none() && cache.remove_in_memory(&1).is_none());
    cache.insert(1, &[3; 200]).unwrap();
    assert_eq!((first.bytes(), second.bytes()), (&[1; 1000][..], &[2; 500][..]));
    assert_eq!((cache.len(), cache.bytes(), pool.metrics().allocated), (1, 200, 1700));
    drop(first);
    drop(second);
    assert_eq!(pool.metrics().allocated, 200);
    let stats = cache.stats();
    assert_eq!((stats.insertions, stats.replacements, stats.removals), (3, 1, 1));
}

#[test]
fn pins_reservations_cache_and_pool_are_dropped_in_any_order() {
    for order in 0..24 {
        let pool = pool(64 << 10);
        let cache = one_shard(&pool, |builder| builder);
        cache.insert(1, &[1; 4096]).unwrap();
        let pinned = cache.get(&1).unwrap();
        let mut room = cache.reserve(2, 4096).unwrap();
        room.bytes_mut().fill(2);
        // If the pool or the cache is dropped last, it sees the values that remain.
        let (mut pool, mut cache) = (Some(pool), Some(cache));
        let (mut pinned, mut room) = (Some(pinned), Some(room));
        let mut left = vec![0, 1, 2, 3];
        for choices in [4, 3, 2, 1] {
            match left.remove((order / [1, 4, 12, 24][4 - choices]) % choices) {
                0 => drop(pool.take()),
                1 => drop(cache.take()),
                2 => {
                    assert_eq!(pinned.as_deref(), Some(&[1; 4096][..]));
                    pinned = None;
                }
                _ => drop(room.take().map(Reservation::commit)),
            }
        }
        assert!(pinned.is_none());
    }
}

#[test]
fn a_reservation_is_charged_and_invisible_and_releases_its_bytes() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| builder.max_bytes(1000));
    cache.insert(1, &[1; 400]).unwrap();
    let room = cache.reserve(1, 600).unwrap();
    assert_eq!((cache.len(), cache.bytes()), (2, 1000));
    assert_eq!(cache.get(&1).unwrap().bytes(), [1; 400]);
    drop(room);
    assert_eq!((cache.len(), cache.bytes(), pool.metrics().allocated), (1, 400, 400));
    // The old value of the same key is evicted first.
    cache.insert(2, &[2; 600]).unwrap();
    let room = cache.reserve(2, 500).unwrap();
    assert_eq!(held(&cache, 0..9), [1]);
    let failed = cache.reserve(3, 600).map(drop);
    assert_eq!(failed, Err(KvCacheError::NothingToEvict { requested: 600, blocks: 1, bytes: 500 }));
    assert!(held(&cache, 0..9).is_empty());
    drop(room.commit());
    assert_eq!(held(&cache, 0..9), [2]);
}

#[test]
fn a_fill_that_panics_leaves_nothing() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| builder);
    cache.insert(1, &[1; 10]).unwrap();
    let done =
        catch_unwind(AssertUnwindSafe(|| cache.insert_filled(1, 1000, |_| panic!("as meant"))));
    assert!(done.is_err());
    assert_eq!((cache.len(), cache.bytes(), pool.metrics().allocated), (1, 10, 10));
    assert_eq!(cache.get(&1).unwrap().bytes(), [1; 10]);
}

#[test]
fn handles_may_move_to_other_threads() {
    fn sent<T: Send + Sync>() {}
    sent::<KvCache<u64>>();
    sent::<Pinned<String>>();
    sent::<Reservation<u128>>();
    assert_eq!(size_of::<Pinned<u128>>(), 8);
}

#[test]
fn keys_are_found_by_their_borrowed_form() {
    let pool = pool(64 << 10);
    let cache: KvCache<String> = KvCache::new(&pool);
    cache.insert("prefix".to_owned(), b"value").unwrap();
    assert_eq!(cache.get("prefix").unwrap().bytes(), b"value");
    assert!(cache.contains("prefix") && !cache.contains("suffix"));
    assert_eq!(cache.remove_in_memory("prefix").unwrap().key(), "prefix");
    assert!(cache.is_empty());
}

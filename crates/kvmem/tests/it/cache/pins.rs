//! Pins, reservations, and drops in any order.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvmem::cache::KvCache;
use kvmem::cache::{Pinned, Reservation};

use super::{one_shard, pool};

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

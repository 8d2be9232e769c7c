//! Who gets what is evicted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use kvmem::pool::KvCache;
use kvmem::pool::kv_cache::{KvCacheError, Pinned};

use super::{held, one_shard, pool};

#[test]
fn each_evicted_value_is_given_once_with_its_bytes() {
    let pool = pool(64 << 10);
    let (give, given) = mpsc::channel();
    let cache = one_shard(&pool, |builder| {
        builder.max_blocks(4).on_evict(move |pinned| {
            let (key, bytes) = (*pinned.key(), pinned.bytes().to_vec());
            give.send((key, bytes)).unwrap();
        })
    });
    for key in 0..10 {
        cache.insert_with(key, 1000, |bytes| bytes.fill(key as u8)).unwrap();
    }
    assert_eq!(held(&cache, 0..10), [6, 7, 8, 9]);
    for key in 0..6 {
        assert_eq!(given.try_recv(), Ok((key, vec![key as u8; 1000])));
    }
    // What is removed, replaced where there is room, or cleared is not.
    drop(cache.remove(&6));
    cache.insert(7, b"other").unwrap();
    cache.clear();
    assert!(given.try_recv().is_err());
    cache.check().unwrap();
    let stats = cache.stats();
    assert_eq!((stats.evictions, stats.bytes, pool.metrics().allocated), (6, 0, 0));
}

#[test]
fn watermarks_and_evict_to_give_too() {
    let pool = pool(64 << 10);
    let given = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&given);
    let cache = one_shard(&pool, |builder| {
        builder.max_bytes(40_000).watermarks(10_000, 30_000).on_evict(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        })
    });
    for key in 0..31 {
        cache.insert_with(key, 1000, |_| ()).unwrap();
    }
    assert_eq!((given.load(Ordering::Relaxed), cache.len()), (21, 10));
    assert_eq!(cache.evict_to(0), 0);
    assert_eq!(given.load(Ordering::Relaxed), 31);
}

#[test]
fn a_kept_pin_keeps_its_bytes_and_the_insertion_evicts_further() {
    let pool = pool(64 << 10);
    let kept: Arc<Mutex<Vec<Pinned<u64>>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let cache = one_shard(&pool, |builder| {
        builder.on_evict(move |pinned| {
            let mut kept = keep.lock().unwrap();
            // Three at most; the others are let go.
            if kept.len() < 3 {
                kept.push(pinned);
            }
        })
    });
    for key in 0..16 {
        cache.insert_with(key, 4096, |bytes| bytes.fill(key as u8)).unwrap();
    }
    // The first three make no room, the fourth does.
    cache.insert_with(16, 4096, |_| ()).unwrap();
    assert_eq!(held(&cache, 0..17), (4..17).collect::<Vec<u64>>());
    assert_eq!((cache.bytes(), pool.metrics().allocated), (13 * 4096, 16 * 4096));
    for (key, pinned) in kept.lock().unwrap().drain(..).enumerate() {
        assert_eq!((*pinned.key(), pinned.bytes()), (key as u64, &[key as u8; 4096][..]));
    }
    assert_eq!(pool.metrics().allocated, 13 * 4096);
    cache.check().unwrap();
}

#[test]
fn where_all_is_in_other_hands_an_insertion_is_refused() {
    let pool = pool(64 << 10);
    let kept: Arc<Mutex<Vec<Pinned<u64>>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let cache = one_shard(&pool, |builder| {
        builder.on_evict(move |pinned| keep.lock().unwrap().push(pinned))
    });
    for key in 0..16 {
        cache.insert_with(key, 4096, |_| ()).unwrap();
    }
    let refused = cache.insert_with(16, 4096, |_| ());
    assert!(matches!(refused, Err(KvCacheError::NothingToEvict { blocks: 0, .. })), "{refused:?}");
    kept.lock().unwrap().clear();
    cache.insert_with(16, 4096, |_| ()).unwrap();
    cache.check().unwrap();
}

#[test]
fn the_taker_may_look_into_the_cache_and_panic() {
    let pool = pool(64 << 10);
    let itself: Arc<Mutex<Option<KvCache<u64>>>> = Arc::default();
    let found = Arc::clone(&itself);
    let cache = one_shard(&pool, |builder| {
        builder.max_blocks(2).on_evict(move |pinned| {
            let cache = found.lock().unwrap().clone().expect("it has been put there");
            // It is out already, and no lock is held.
            assert!(!cache.contains(pinned.key()) && cache.get(&1).is_some());
            assert!(*pinned.key() != 2, "the second one panics");
        })
    });
    *itself.lock().unwrap() = Some(cache.clone());
    cache.insert(0, b"0").unwrap();
    cache.insert(1, b"1").unwrap();
    cache.insert(2, b"2").unwrap();
    assert_eq!(held(&cache, 0..3), [1, 2]);
    assert!(cache.get(&1).is_some());
    // 2 is next.
    assert!(catch_unwind(AssertUnwindSafe(|| cache.insert(3, b"3"))).is_err());
    cache.check().unwrap();
    // What had been got for the value that was not put in has been given back.
    assert_eq!((held(&cache, 0..4), pool.metrics().live), (vec![1], 1));
    *itself.lock().unwrap() = None;
}

#[test]
fn threads_lose_nothing() {
    let pool = pool(256 << 10);
    let (give, given) = mpsc::sync_channel::<Pinned<u64>>(4);
    let cache = KvCache::<u64>::builder(&pool)
        .max_bytes(128 << 10)
        .on_evict(move |pinned| give.send(pinned).expect("somebody listens"))
        .build()
        .unwrap();
    let each = if cfg!(miri) { 20 } else { 500 };
    let all = 4 * each;
    let seen = thread::scope(|scope| {
        let taking = scope.spawn(move || {
            given
                .iter()
                .inspect(|pinned| assert_eq!(pinned.bytes(), [*pinned.key() as u8; 3000]))
                .count() as u64
        });
        let mut putting = Vec::new();
        for thread in 0..4_u64 {
            let cache = cache.clone();
            putting.push(scope.spawn(move || {
                for n in 0..each {
                    let key = thread * each + n;
                    cache.insert_with(key, 3000, |bytes| bytes.fill(key as u8)).unwrap();
                }
            }));
        }
        for thread in putting {
            thread.join().unwrap();
        }
        cache.check().unwrap();
        let stats = cache.stats();
        assert_eq!(stats.evictions + stats.blocks, all);
        drop(cache);
        assert_eq!(taking.join().unwrap(), stats.evictions);
        stats.blocks
    });
    assert!((1..all).contains(&seen));
    assert_eq!(pool.metrics().allocated, 0);
}

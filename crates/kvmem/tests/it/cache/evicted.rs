//! The eviction sink: it receives every evicted value once, and may keep it or fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use kvmem::cache::KvCache;
use kvmem::cache::{KvCacheError, Pinned};

use super::{held, one_shard, pool};

#[test]
fn the_sink_receives_each_evicted_value_once() {
    let pool = pool(64 << 10);
    let (send, received) = mpsc::channel();
    let cache = one_shard(&pool, |builder| {
        builder.max_blocks(4).on_evict(move |pinned| {
            let (key, bytes) = (*pinned.key(), pinned.bytes().to_vec());
            send.send((key, bytes)).unwrap();
        })
    });
    for key in 0..10 {
        cache.insert_filled(key, 1000, |bytes| bytes.fill(key as u8)).unwrap();
    }
    assert_eq!(held(&cache, 0..10), [6, 7, 8, 9]);
    assert_eq!(cache.evict_to(3000), 3000);
    for key in 0..7 {
        assert_eq!(received.try_recv(), Ok((key, vec![key as u8; 1000])));
    }
    // Values that are removed, cleared, or replaced while there is room are not evicted.
    drop(cache.remove(&7));
    cache.insert(8, b"other").unwrap();
    cache.clear_in_memory();
    assert!(received.try_recv().is_err());
    cache.check().unwrap();
    let stats = cache.stats();
    assert_eq!((stats.evictions, stats.bytes, pool.metrics().allocated), (7, 0, 0));
}

#[test]
fn a_kept_pin_keeps_its_bytes_and_the_insertion_evicts_further() {
    let pool = pool(64 << 10);
    let kept: Arc<Mutex<Vec<Pinned<u64>>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let cache = one_shard(&pool, |builder| {
        builder.on_evict(move |pinned| {
            let mut kept = keep.lock().unwrap();
            // The sink keeps at most three pins and drops the others.
            if kept.len() < 3 {
                kept.push(pinned);
            }
        })
    });
    for key in 0..16 {
        cache.insert_filled(key, 4096, |bytes| bytes.fill(key as u8)).unwrap();
    }
    // The first three evictions free nothing; the fourth does.
    cache.insert_filled(16, 4096, |_| ()).unwrap();
    assert_eq!(held(&cache, 0..17), (4..17).collect::<Vec<u64>>());
    assert_eq!((cache.bytes(), pool.metrics().allocated), (13 * 4096, 16 * 4096));
    for (key, pinned) in kept.lock().unwrap().drain(..).enumerate() {
        assert_eq!((*pinned.key(), pinned.bytes()), (key as u64, &[key as u8; 4096][..]));
    }
    assert_eq!(pool.metrics().allocated, 13 * 4096);
    cache.check().unwrap();
}

#[test]
fn an_insertion_fails_if_the_sink_keeps_every_pin() {
    let pool = pool(64 << 10);
    let kept: Arc<Mutex<Vec<Pinned<u64>>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let cache = one_shard(&pool, |builder| {
        builder.on_evict(move |pinned| keep.lock().unwrap().push(pinned))
    });
    for key in 0..16 {
        cache.insert_filled(key, 4096, |_| ()).unwrap();
    }
    let failed = cache.insert_filled(16, 4096, |_| ());
    assert!(matches!(failed, Err(KvCacheError::NothingToEvict { blocks: 0, .. })), "{failed:?}");
    kept.lock().unwrap().clear();
    cache.insert_filled(16, 4096, |_| ()).unwrap();
    cache.check().unwrap();
}

#[test]
fn the_sink_may_use_the_cache_and_panic() {
    let pool = pool(64 << 10);
    let itself: Arc<Mutex<Option<KvCache<u64>>>> = Arc::default();
    let found = Arc::clone(&itself);
    let cache = one_shard(&pool, |builder| {
        builder.max_blocks(2).on_evict(move |pinned| {
            let cache = found.lock().unwrap().clone().expect("it was set");
            // The value has left the cache already, and no lock is held.
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
    // Key 2 is the next victim.
    assert!(catch_unwind(AssertUnwindSafe(|| cache.insert(3, b"3"))).is_err());
    cache.check().unwrap();
    // The block for the value that was not inserted is free again.
    assert_eq!((held(&cache, 0..4), pool.metrics().live), (vec![1], 1));
    *itself.lock().unwrap() = None;
}

#[test]
fn threads_lose_nothing() {
    let pool = pool(256 << 10);
    let (send, received) = mpsc::sync_channel::<Pinned<u64>>(4);
    let cache = KvCache::<u64>::builder(&pool)
        .max_bytes(128 << 10)
        .on_evict(move |pinned| send.send(pinned).expect("the receiver exists"))
        .build()
        .unwrap();
    let each = if cfg!(miri) { 20 } else { 500 };
    let all = 4 * each;
    let seen = thread::scope(|scope| {
        let taking = scope.spawn(move || {
            received
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
                    cache.insert_filled(key, 3000, |bytes| bytes.fill(key as u8)).unwrap();
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

//! How a cache requests blocks from its pool, and when it drops keys.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvmem::cache::KvCache;
use kvmem::cache::KvCacheError;
use kvmem::pool::{Pool, PoolError};

use super::{held, one_shard, pool};

#[test]
fn the_allocator_decides_length_and_alignment() {
    let pool = pool(64 << 10);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let cache = one_shard(&pool, |builder| {
        builder.max_bytes(40_000).with_allocator(move |pool, len| {
            counted.fetch_add(1, Ordering::Relaxed);
            // Whole pages, page-aligned.
            pool.allocate_aligned(len.next_multiple_of(4096), 4096)
        })
    });
    for key in 0..100 {
        cache.insert_filled(key, 5000, |bytes| bytes.fill(key as u8)).unwrap();
        // The length of the block is charged, not the requested length.
        assert_eq!(cache.bytes(), 8192 * cache.len());
        assert!(cache.bytes() <= 40_000);
    }
    assert_eq!(held(&cache, 0..100), [96, 97, 98, 99]);
    for key in 96..100 {
        let pin = cache.get(&key).unwrap();
        // The value keeps its length in the longer block.
        assert_eq!((pin.block().offset() % 4096, pin.block().len()), (0, 8192));
        assert_eq!(pin.bytes(), &[key as u8; 5000][..]);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 100, "the limit evicts, the pool is never full");
    cache.check().unwrap();
    cache.clear_in_memory();
    assert_eq!((cache.bytes(), pool.metrics().allocated), (0, 0));
}

#[test]
fn the_allocator_is_called_after_each_eviction_and_may_return_its_own_errors() {
    let pool = pool(64 << 10);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let cache = one_shard(&pool, |builder| {
        builder.with_allocator(move |pool, len| {
            counted.fetch_add(1, Ordering::Relaxed);
            if len == 1 { Err(PoolError::Private) } else { pool.allocate(len) }
        })
    });
    for key in 0..16 {
        cache.insert_filled(key, 4096, |_| ()).unwrap();
    }
    assert_eq!(calls.swap(0, Ordering::Relaxed), 16);
    cache.insert_filled(16, 3 * 4096, |_| ()).unwrap();
    assert_eq!(calls.swap(0, Ordering::Relaxed), 4);
    assert_eq!(held(&cache, 0..17), (3..17).collect::<Vec<u64>>());
    // An error that an eviction cannot resolve evicts nothing.
    assert!(cache.insert_filled(17, 1, |_| ()).is_err());
    assert_eq!((calls.load(Ordering::Relaxed), cache.len()), (1, 14));
}

#[test]
fn a_longer_block_is_accepted_and_a_shorter_one_is_an_error() {
    let pool = pool(64 << 10);
    let cache = one_shard(&pool, |builder| {
        builder.max_bytes(9000).with_allocator(|pool, len| match len {
            // A shorter block, one longer than the limit, and a longer one within it.
            100 => pool.allocate(99),
            200 => pool.allocate(9001),
            _ => pool.allocate(2 * len),
        })
    });
    cache.insert(1, b"value").unwrap();
    assert_eq!(cache.get(&1).unwrap().bytes(), b"value");
    assert_eq!((cache.bytes(), cache.get(&1).unwrap().block().len()), (10, 10));
    let mut room = cache.reserve(2, 4000).unwrap();
    assert_eq!((room.bytes_mut().len(), room.block().len()), (4000, 8000));
    room.bytes_mut().fill(2);
    assert_eq!(room.commit().bytes(), [2; 4000]);
    for (requested, returned) in [(100, 99), (200, 9001)] {
        let error = cache.insert(3, &[3; 200][..requested]).unwrap_err();
        let expected =
            KvCacheError::WrongLength { requested: requested as u64, returned, limit: 9000 };
        assert_eq!(error, expected);
        assert!(error.to_string().contains(&format!("of {returned} bytes")), "{error}");
    }
    // The failed insertions evicted nothing, and their blocks are free again.
    assert_eq!((cache.len(), cache.bytes(), pool.metrics().allocated), (2, 8010, 8010));
    cache.check().unwrap();
    cache.clear_in_memory();
    assert_eq!((cache.bytes(), pool.metrics().allocated), (0, 0));
}

/// A key that checks, when it is dropped, whether the whole pool is free.
struct Witness {
    number: u64,
    pool: Pool,
    free_when_dropped: Arc<AtomicU64>,
}

impl PartialEq for Witness {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Witness {}

impl Hash for Witness {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let free = self.pool.allocate(self.pool.capacity() as usize).is_ok();
        self.free_when_dropped.fetch_add(u64::from(free), Ordering::Relaxed);
    }
}

#[test]
fn a_key_is_dropped_before_its_bytes_are_free() {
    let pool = pool(64 << 10);
    let free_when_dropped = Arc::new(AtomicU64::new(0));
    let key = |number| Witness {
        number,
        pool: pool.clone(),
        free_when_dropped: Arc::clone(&free_when_dropped),
    };
    let cache = KvCache::builder(&pool).shards(1).build().unwrap();
    let whole = pool.capacity() as usize;
    cache.insert_filled(key(1), whole, |_| ()).unwrap();
    // Evicted, dropped as a reservation, replaced, removed while pinned, and cleared.
    cache.insert_filled(key(2), whole, |_| ()).unwrap();
    drop(cache.reserve(key(3), whole).unwrap());
    cache.insert_filled(key(4), whole / 2, |_| ()).unwrap();
    cache.insert_filled(key(4), whole / 2, |_| ()).unwrap();
    let probe = key(4);
    let pin = cache.get_in_memory(&probe).unwrap();
    drop(cache.remove_in_memory(&probe));
    drop(pin);
    cache.insert_filled(key(5), whole, |_| ()).unwrap();
    cache.clear_in_memory();
    assert_eq!(free_when_dropped.load(Ordering::Relaxed), 0);
    drop(probe);
    assert_eq!(
        free_when_dropped.load(Ordering::Relaxed),
        1,
        "a key without bytes sees that all is free"
    );
}

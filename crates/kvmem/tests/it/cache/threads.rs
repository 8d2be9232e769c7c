//! Eight threads: values are whole and correct, and no insertion fails while there is room.

use std::thread;

use kvmem::cache::KvCache;
use kvmem::cache::{Eviction, Pinned};

use super::pool;
use crate::offset::soak::setting;

const THREADS: u64 = 8;
const STEPS: u64 = 6_000;
const KEYS: u64 = 400;

/// A small random generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) % sides
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Writes key, version, checksum of the rest, and random bytes up to the end.
fn write(bytes: &mut [u8], key: u64, version: u64) {
    let mut dice = Dice(key << 32 | version);
    bytes[24..].iter_mut().for_each(|byte| *byte = dice.roll(256) as u8);
    let sum = checksum(&bytes[24..]);
    for (at, word) in [key, version, sum].into_iter().enumerate() {
        bytes[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
}

/// Asserts that a value is whole and belongs to `key`; returns its version.
fn read(pinned: &Pinned<u64>, key: u64) -> u64 {
    let bytes = pinned.bytes();
    let word = |at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().unwrap());
    assert_eq!((word(0), *pinned.key()), (key, key), "another key's value");
    assert_eq!(word(2), checksum(&bytes[24..]), "key {key}, version {}: damaged", word(1));
    word(1)
}

/// Runs one thread. Each key has one writer, and all threads read all keys. A writer finds the
/// version that it wrote last, or nothing; a reader never finds an older version than before.
fn work(cache: &KvCache<u64>, me: u64, steps: u64) {
    let mut dice = Dice(me + 1);
    // By key: the last version written for own keys, the last one seen for others; 0 if none.
    let mut versions = vec![0u64; KEYS as usize];
    let mut present = vec![false; KEYS as usize];
    let mut kept: Option<(u64, u64, Pinned<u64>)> = None;
    for step in 1..=steps {
        let mut key = dice.roll(KEYS);
        let kind = dice.roll(100);
        if kind < 50 {
            let known = versions[key as usize];
            if let Some(pinned) = cache.get(&key) {
                let version = read(&pinned, key);
                if key % THREADS == me {
                    assert!(present[key as usize], "key {key} was removed");
                    assert_eq!(version, known, "key {key}");
                } else {
                    assert!(version >= known, "key {key} went back");
                    versions[key as usize] = version;
                }
                if kind < 5
                    && let Some((key, version, old)) = kept.replace((key, version, pinned))
                {
                    assert_eq!(read(&old, key), version, "a pinned value changed");
                }
            }
            continue;
        }
        key = key - key % THREADS + me;
        let at = key as usize;
        let len = 24 + dice.roll(2000) as usize;
        match kind {
            50..80 => {
                cache.insert_filled(key, len, |bytes| write(bytes, key, step)).unwrap();
                (versions[at], present[at]) = (step, true);
            }
            80..88 => {
                let mut room = cache.reserve(key, len).unwrap();
                write(room.bytes_mut(), key, step);
                let pinned = room.commit();
                assert_eq!(read(&pinned, key), step);
                (versions[at], present[at]) = (step, true);
            }
            88..91 => drop(cache.reserve(key, len).unwrap()),
            91..98 => {
                if let Some(pinned) = cache.remove_in_memory(&key) {
                    assert!(present[at]);
                    assert_eq!(read(&pinned, key), versions[at]);
                }
                present[at] = false;
                assert!(cache.get(&key).is_none());
            }
            98 => drop(cache.evict_to(20_000)),
            _ => drop(kept.take()),
        }
    }
}

#[test]
fn eight_threads_find_whole_values_and_the_right_ones() {
    let steps = setting("KVMEM_SOAK_OPS", 3 * THREADS * STEPS) / (3 * THREADS);
    for (eviction, shards) in
        [(Eviction::Lru, 16), (Eviction::Lru, 1), (Eviction::ScanResistant, 4)]
    {
        // A value has at most 2 KiB. A thread has at most 4 values that are pinned, being written,
        // or removed and not dropped yet: 64 KiB in total, in a pool of twice the limit.
        let pool = pool(256 << 10);
        let mut builder = KvCache::<u64>::builder(&pool).eviction(eviction).shards(shards);
        builder = builder.max_bytes(128 << 10);
        let cache = builder.build().unwrap();
        thread::scope(|scope| {
            for me in 0..THREADS {
                let cache = cache.clone();
                scope.spawn(move || work(&cache, me, steps));
            }
        });
        cache.check().unwrap();
        let stats = cache.stats();
        assert!(stats.evictions > 1000, "{stats:?}");
        assert_eq!(stats.insertion_failures, 0);
        assert_eq!(
            stats.insertions,
            stats.blocks + stats.replacements + stats.evictions + stats.removals,
            "{stats:?}"
        );
        cache.clear_in_memory();
        assert_eq!((cache.len(), cache.bytes(), pool.metrics().allocated), (0, 0, 0));
    }
}

/// Values of one length in a full cache: each insertion takes over the block of its victim, while
/// other threads read and pin. With this many blocks a shard evicts without comparing.
#[test]
fn eight_threads_take_over_blocks_and_change_no_value_that_is_read() {
    const LEN: usize = 64;
    const BLOCKS: u64 = 1_000;
    for eviction in [Eviction::Lru, Eviction::ScanResistant] {
        let pool = pool(BLOCKS as usize * LEN + (64 << 10));
        let builder = KvCache::<u64>::builder(&pool).eviction(eviction).shards(8);
        let cache = builder.max_blocks(BLOCKS).build().unwrap();
        thread::scope(|scope| {
            for me in 0..THREADS {
                let cache = &cache;
                scope.spawn(move || {
                    let mut dice = Dice(me + 33);
                    let mut kept = None;
                    for step in 0..STEPS {
                        let key = dice.roll(3 * BLOCKS);
                        match cache.get(&key) {
                            Some(pinned) => {
                                let version = read(&pinned, key);
                                if let Some((key, version, old)) =
                                    kept.replace((key, version, pinned))
                                {
                                    assert_eq!(read(&old, key), version, "a pinned value changed");
                                }
                            }
                            None => {
                                cache
                                    .insert_filled(key, LEN, |bytes| write(bytes, key, step))
                                    .unwrap();
                            }
                        }
                        assert!(cache.len() <= BLOCKS);
                    }
                });
            }
        });
        cache.check().unwrap();
        let stats = cache.stats();
        assert!(stats.evictions > 1000 && stats.insertion_failures == 0, "{stats:?}");
        assert_eq!(stats.insertions, stats.blocks + stats.replacements + stats.evictions);
        assert_eq!(cache.bytes(), pool.metrics().allocated);
        cache.clear_in_memory();
        assert_eq!((cache.len(), cache.bytes(), pool.metrics().allocated), (0, 0, 0));
    }
}

/// Without a limit the cache fills the pool.
#[test]
fn eight_threads_share_a_pool_that_is_full() {
    let pool = pool(1 << 20);
    let cache: KvCache<u64> = KvCache::new(&pool);
    thread::scope(|scope| {
        for me in 0..THREADS {
            let cache = &cache;
            scope.spawn(move || {
                let mut dice = Dice(me + 77);
                for step in 0..STEPS {
                    let key = dice.roll(5000);
                    match cache.get(&key) {
                        Some(pinned) => drop(read(&pinned, key)),
                        None => {
                            let len = 24 + dice.roll(3000) as usize;
                            cache.insert_filled(key, len, |bytes| write(bytes, key, step)).unwrap();
                        }
                    }
                }
            });
        }
    });
    cache.check().unwrap();
    let stats = cache.stats();
    assert!(stats.evictions > 1000 && stats.insertion_failures == 0, "{stats:?}");
    assert!(stats.bytes > 700_000, "{stats:?}");
    // Another user of the pool can allocate the bytes that the cache evicts.
    assert!(pool.allocate(1 << 20).is_err());
    assert_eq!(cache.evict_to(0), 0);
    drop(pool.allocate(1 << 20).unwrap());
}

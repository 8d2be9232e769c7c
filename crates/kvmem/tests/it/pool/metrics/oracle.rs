//! After random requests the metrics equal those of the oracle; they are compared every few steps.

use std::collections::BTreeMap;

use kvmem::cache::KvCache;
use kvmem::cache::KvCacheError;
use kvmem::offset::AllocError;
use kvmem::pool::observe::Exporter;
use kvmem::pool::{Block, Pool, PoolError};
use kvmem::slab::ExtentState;
use kvmem_testkit::oracle::Oracle;

use super::{MemoryRecorder, published, small};
use crate::pool::MIB;

/// A small random generator.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        // xorshift64: the quality of the numbers does not matter.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// The number of failures by reason, as the test has seen them.
type Failures = BTreeMap<&'static str, u64>;

fn reason(error: &PoolError) -> &'static str {
    match error {
        PoolError::Allocate(AllocError::OutOfSpace { .. }) => "out_of_space",
        PoolError::Allocate(AllocError::TooLarge { .. }) => "too_large",
        PoolError::Allocate(AllocError::ZeroSize) => "zero_size",
        PoolError::Allocate(AllocError::BadAlign { .. }) => "bad_align",
        PoolError::Allocate(AllocError::NoRanges { .. }) => "no_ranges",
        error => panic!("no request here fails with {error}"),
    }
}

/// Compares every metric of a pool.
fn compare(
    pool: &Pool,
    exporter: &Exporter,
    oracle: &Oracle,
    failures: &Failures,
) -> MemoryRecorder {
    let recorded = published(exporter);
    let bytes = |name: &str| recorded.value(&format!("kvmem_pool_{name}"), &[]) as u64;
    assert_eq!(bytes("capacity_bytes"), oracle.capacity());
    assert_eq!(bytes("ready_bytes"), oracle.capacity());
    assert_eq!(bytes("quarantined_bytes"), 0);
    assert_eq!(bytes("allocated_bytes"), oracle.allocated());
    assert_eq!(bytes("requested_bytes"), oracle.allocated());
    assert_eq!(bytes("free_bytes"), oracle.free_bytes());
    assert_eq!(bytes("allocations"), oracle.live() as u64);
    assert!(bytes("largest_free_bytes") <= oracle.largest_free());
    assert_eq!(bytes("reclaims_total"), pool.stats().reclaims);
    let cached: u64 = pool
        .map()
        .iter()
        .filter(|range| range.state == ExtentState::Cached)
        .map(|range| range.size)
        .sum();
    assert_eq!(bytes("cached_bytes"), cached);
    for reason in [
        "out_of_space",
        "not_ready",
        "too_large",
        "zero_size",
        "bad_align",
        "no_ranges",
        "too_many_ranges",
        "other",
    ] {
        let count = recorded.value("kvmem_pool_allocation_failures_total", &[("reason", reason)]);
        assert_eq!(count as u64, failures.get(reason).copied().unwrap_or(0), "{reason}");
    }
    recorded
}

#[test]
fn of_a_pool() {
    for seed in 1..=4 {
        let pool = small(MIB).name("kv").hot_sizes([4096, 1000]).build().expect("little memory");
        let report = pool.report();
        let exporter = Exporter::new().pool(&pool);
        let mut oracle = Oracle::new(report.capacity_bytes, report.boundary_bytes);
        let mut draw = Draw(0x9e37_79b9_7f4a_7c15 ^ seed);
        let (mut held, mut failures): (Vec<Block>, Failures) = Default::default();
        for step in 0..4000 {
            let size = match draw.below(8) {
                0..3 => 4096,
                3..5 => 1000,
                5 => draw.below(100_000) as usize,
                6 => draw.below(200).saturating_sub(20) as usize,
                _ => 2 * MIB,
            };
            let got = match draw.below(10) {
                0..6 => pool.allocate(size).map(|block| vec![block]),
                6 => pool
                    .allocate_aligned(size, [1, 256, 1 << 16, 3][draw.below(4) as usize])
                    .map(|block| vec![block]),
                7 => pool.allocate_batch(size, 3),
                8 => pool.allocate_scattered(size, draw.below(4) as usize),
                _ => Ok(Vec::new()),
            };
            match got {
                Ok(blocks) => {
                    for block in blocks {
                        oracle
                            .grant(block.offset(), block.len() as u64)
                            .expect("as the oracle allows");
                        held.push(block);
                    }
                }
                Err(error) => *failures.entry(reason(&error)).or_default() += 1,
            }
            while held.len() > 150 || !held.is_empty() && draw.below(3) == 0 {
                let block = held.swap_remove(draw.below(held.len() as u64) as usize);
                oracle.free(block.offset()).expect("it is allocated");
                drop(block);
            }
            if step % 16 == 0 {
                compare(&pool, &exporter, &oracle, &failures);
            }
            if step % 256 == 0 {
                // After a trim nothing is cached or left to coalesce, so this value is exact too.
                pool.trim();
                assert_eq!(pool.metrics().largest_free, oracle.largest_free());
                let recorded = compare(&pool, &exporter, &oracle, &failures);
                assert_eq!(
                    recorded.value("kvmem_pool_largest_free_bytes", &[]) as u64,
                    oracle.largest_free()
                );
            }
        }
        for reason in ["out_of_space", "too_large", "zero_size", "bad_align", "no_ranges"] {
            assert!(failures.contains_key(reason), "no request failed with {reason}");
        }
    }
}

#[test]
fn of_a_cache() {
    const KEYS: u64 = 40;
    for seed in 1..=4 {
        let pool = small(MIB).build().expect("little memory");
        let cache: KvCache<u64> = KvCache::builder(&pool)
            .max_bytes(60_000)
            .max_blocks(20)
            .shards(1)
            .build()
            .expect("settings");
        let exporter = Exporter::new().pool(&pool).cache(&cache);
        let mut draw = Draw(0x2545_f491_4f6c_dd1d ^ seed);
        let (mut lens, mut pins) = (BTreeMap::new(), Vec::new());
        let (mut hits, mut misses, mut insertions, mut removals, mut insertion_failures) =
            (0, 0, 0, 0, 0);
        for step in 0..3000 {
            let key = draw.below(KEYS);
            match draw.below(8) {
                0..4 => match cache.get(&key) {
                    Some(pinned) => {
                        hits += 1;
                        assert_eq!(pinned.bytes().len() as u64, lens[&key]);
                        if draw.below(3) > 0 {
                            pins.push(pinned);
                        }
                    }
                    None => misses += 1,
                },
                4..7 => {
                    let len = 1 + draw.below(8000);
                    match cache.insert(key, &vec![key as u8; len as usize]) {
                        Ok(()) => {
                            insertions += 1;
                            lens.insert(key, len);
                        }
                        Err(KvCacheError::NothingToEvict { .. }) => insertion_failures += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                _ => removals += u64::from(cache.remove_in_memory(&key).is_some()),
            }
            if draw.below(20) == 0 {
                pins.clear();
            }
            if draw.below(100) == 0 {
                // Pins everything: nothing can be evicted for a while.
                let all: Vec<_> = (0..KEYS).filter_map(|key| cache.get(&key)).collect();
                (hits, misses) = (hits + all.len() as u64, misses + KEYS - all.len() as u64);
                pins.extend(all);
            }
            if step % 8 > 0 {
                continue;
            }
            let recorded = published(&exporter);
            let figure = |name: &str| {
                recorded.value(&format!("kvmem_cache_{name}"), &[("cache", "cache")]) as u64
            };
            // The held values, by a lookup of each key.
            let held = (0..KEYS).filter(|key| cache.contains(key));
            let (blocks, bytes) =
                held.fold((0, 0), |(blocks, bytes), key| (blocks + 1, bytes + lens[&key]));
            assert_eq!((figure("blocks"), figure("bytes")), (blocks, bytes));
            assert_eq!((figure("hits_total"), figure("misses_total")), (hits, misses));
            assert_eq!(
                (figure("insertions_total"), figure("removals_total")),
                (insertions, removals)
            );
            assert_eq!(figure("insertion_failures_total"), insertion_failures);
            // What came in is there, or has gone in one of three ways.
            let gone = figure("evictions_total") + figure("replacements_total") + removals;
            assert_eq!(insertions, blocks + gone);
            // The pool has the values, and those that are gone but pinned.
            assert!(recorded.value("kvmem_pool_allocated_bytes", &[]) as u64 >= bytes);
        }
        drop((pins, cache));
        assert!(
            hits > 0 && misses > 0 && removals > 0 && insertion_failures > 0,
            "{hits} {misses} {removals} {insertion_failures}"
        );
    }
}

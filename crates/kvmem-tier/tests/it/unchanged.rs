//! Values that a cache has fetched and evicts unchanged: they are not written again, unless the
//! tier has lost them or has another value since.

use std::sync::Arc;

use kvmem::arena::PageSize;
use kvmem::cache::{KvCache, Pinned};
use kvmem::pool::Pool;
use kvmem::tier::{BoxError, Chain, StoreOutcome, Tier, TierValue, WriteBehind};
use kvmem_testkit::random::Random;
use kvmem_tier::{DiskTier, DiskTierOptions, TierSet, TierStats};

use crate::simulated::Disk;

fn tier(disk: &Disk) -> Arc<DiskTier<Disk>> {
    let options = DiskTierOptions { max_entries: Some(1000), ..DiskTierOptions::default() };
    Arc::new(DiskTier::on(disk.clone(), &options).unwrap().0)
}

fn cache_above(tier: Arc<dyn Tier>) -> KvCache<u64> {
    let pool = Pool::builder("4 MiB").ladder(PageSize::Base).build().unwrap();
    KvCache::builder(&pool).lower_tier(tier).build().unwrap()
}

fn value(key: u64, version: u64) -> Vec<u8> {
    let word = (key << 32 | version).to_le_bytes();
    word.into_iter().cycle().take(5000 + key as usize * 10).collect()
}

/// Inserts values, evicts them, and fetches some of them.
fn fetched(cache: &KvCache<u64>, tier: &DiskTier<Disk>) -> TierStats {
    for key in 0..40 {
        cache.insert(key, &value(key, 0)).unwrap();
    }
    cache.evict_to(0);
    fetch(cache, 0..20, 0);
    let stats = tier.stats();
    assert_eq!((stats.entries, stats.stored, stats.unchanged), (40, 40, 0));
    stats
}

fn fetch(cache: &KvCache<u64>, keys: std::ops::Range<u64>, version: u64) {
    let keys: Vec<u64> = keys.collect();
    for (key, found) in keys.iter().zip(cache.get_batch(&keys)) {
        assert_eq!(found.expect("it is in the tier").bytes(), value(*key, version), "{key}");
    }
}

#[test]
fn they_are_not_written_again() {
    let tier = tier(&Disk::new(16 << 20, 1));
    let cache = cache_above(Arc::clone(&tier) as _);
    let before = fetched(&cache, &tier);
    for round in 1..4 {
        cache.evict_to(0);
        let stats = tier.stats();
        assert_eq!((stats.stored, stats.unchanged), (40, 20 * round));
        assert_eq!(stats.written_bytes, before.written_bytes);
        // The journal has the uses, some 60 in a block.
        assert!(stats.metadata_bytes <= before.metadata_bytes + 4096 * round, "{stats:?}");
        fetch(&cache, 0..20, 0);
    }
    fetch(&cache, 0..40, 0);
}

#[test]
fn a_value_that_replaced_one_in_memory_is_written() {
    let tier = tier(&Disk::new(16 << 20, 1));
    let cache = cache_above(Arc::clone(&tier) as _);
    fetched(&cache, &tier);
    for key in 0..10 {
        cache.insert(key, &value(key, 1)).unwrap();
    }
    cache.evict_to(0);
    assert_eq!((tier.stats().stored, tier.stats().unchanged), (50, 10));
    fetch(&cache, 0..10, 1);
    fetch(&cache, 10..40, 0);
}

/// The tier has evicted, removed or replaced the value meanwhile: that of memory is written.
#[test]
fn a_value_that_the_tier_lost_is_written() {
    let tier = tier(&Disk::new(16 << 20, 1));
    let cache = cache_above(Arc::clone(&tier) as _);
    fetched(&cache, &tier);
    tier.remove(&[&3_u64.to_le_bytes()]).unwrap();
    // Under the same key, of the same length: one with other bytes, and one with the same.
    tier.store(&[(&4_u64.to_le_bytes(), &value(5, 7)[..value(4, 0).len()])]);
    tier.store(&[(&5_u64.to_le_bytes(), &value(5, 0))]);
    cache.evict_to(0);
    assert_eq!((tier.stats().stored, tier.stats().unchanged), (45, 17));
    fetch(&cache, 0..40, 0);
    tier.clear().unwrap();
    cache.evict_to(0);
    assert_eq!(tier.stats().entries, 40);
    fetch(&cache, 0..40, 0);
}

/// Stores a value of a cache, as the cache does.
fn store(tier: &dyn Tier, value: &Pinned<u64>) -> Result<StoreOutcome, BoxError> {
    let key = value.key().to_le_bytes();
    tier.store(&[TierValue::pinned(&key, value).with_origin(value.origin())]).remove(0)
}

/// Another tier gives its values other names, even if the file is the same.
#[test]
fn a_tier_that_was_opened_again_writes_what_memory_has() {
    let disk = Disk::new(16 << 20, 1);
    let first = tier(&disk);
    let lower: Arc<dyn Tier> = Arc::clone(&first) as _;
    let cache = cache_above(lower);
    fetched(&cache, &first);
    let pinned: Vec<_> = (0..20).map(|key| cache.get_in_memory(&key).unwrap()).collect();
    let second = tier(&Disk::new(16 << 20, 2));
    for value in &pinned {
        assert!(value.origin().is_some());
        store(&*second, value).unwrap();
        store(&*first, value).unwrap();
    }
    assert_eq!((second.stats().stored, second.stats().unchanged), (20, 0));
    assert_eq!((first.stats().stored, first.stats().unchanged), (40, 20));
}

/// Behind a queue, in a set, and in a chain whose upper tier has the value.
#[test]
fn what_is_between_passes_it_on() {
    let behind = tier(&Disk::new(16 << 20, 1));
    let pool = Pool::builder("4 MiB").ladder(PageSize::Base).build().unwrap();
    let queue = Arc::new(WriteBehind::builder(&pool, behind.clone()).build().unwrap());
    let lower: Arc<dyn Tier> = Arc::clone(&queue) as _;
    let cache = KvCache::builder(&pool).lower_tier(lower).build().unwrap();
    for _ in 0..3 {
        for key in 0..40 {
            if cache.get_batch(&[key])[0].is_none() {
                cache.insert(key, &value(key, 0)).unwrap();
            }
        }
        cache.evict_to(0);
        queue.sync().unwrap();
    }
    assert_eq!((behind.stats().stored, behind.stats().unchanged), (40, 80));

    let options = DiskTierOptions { max_entries: Some(1000), ..DiskTierOptions::default() };
    let part = |seed| DiskTier::on(Disk::new(8 << 20, seed), &options).unwrap().0;
    let set = Arc::new(TierSet::new(vec![part(1), part(2), part(3)]).unwrap());
    let cache = cache_above(Arc::clone(&set) as _);
    for key in 0..40 {
        cache.insert(key, &value(key, 0)).unwrap();
    }
    cache.evict_to(0);
    fetch(&cache, 0..40, 0);
    cache.evict_to(0);
    assert_eq!((set.stats().stored, set.stats().unchanged), (40, 40));
    fetch(&cache, 0..40, 0);

    let (upper, lower) = (tier(&Disk::new(8 << 20, 1)), tier(&Disk::new(16 << 20, 2)));
    let chain = Chain::new(upper.clone(), lower.clone());
    let cache = cache_above(Arc::new(chain));
    for key in 0..40 {
        cache.insert(key, &value(key, 0)).unwrap();
    }
    cache.evict_to(0);
    for key in 0..10_u64 {
        upper.remove(&[&key.to_le_bytes()]).unwrap();
    }
    fetch(&cache, 0..40, 0);
    cache.evict_to(0);
    // Each value is unchanged in the tier that gave it.
    assert_eq!((upper.stats().stored, upper.stats().unchanged), (50, 30));
    assert_eq!((lower.stats().stored, lower.stats().unchanged), (70, 10));
    fetch(&cache, 0..40, 0);
}

/// A journal that fails: nothing counts as stored, also if the tier has it in this process.
#[test]
fn a_failed_journal_takes_nothing() {
    let disk = Disk::new(16 << 20, 1);
    let tier = tier(&disk);
    let cache = cache_above(Arc::clone(&tier) as _);
    fetched(&cache, &tier);
    let pinned: Vec<_> = (0..20).map(|key| cache.get_in_memory(&key).unwrap()).collect();
    disk.fail_once_in(1);
    assert!(tier.checkpoint().is_err());
    disk.fail_once_in(0);
    assert!(pinned.iter().all(|value| store(&*tier, value).is_err()));
    assert_eq!(tier.stats().unchanged, 0);
}

/// Threads insert, fetch, remove and evict; a small tier evicts, too. The latest value is found, or
/// none.
#[test]
fn the_latest_value_is_found_whatever_was_skipped() {
    for (seed, queued) in (0..6).zip([false, true].into_iter().cycle()) {
        let disk = Disk::new(2 << 20, seed);
        let options = DiskTierOptions { max_entries: Some(200), ..DiskTierOptions::default() };
        let tier = Arc::new(DiskTier::on(disk, &options).unwrap().0);
        let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
        let lower: Arc<dyn Tier> = if queued {
            Arc::new(WriteBehind::builder(&pool, tier.clone()).build().unwrap())
        } else {
            Arc::clone(&tier) as _
        };
        let cache: KvCache<u64> = KvCache::builder(&pool).lower_tier(lower).build().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (cache, tier) = (&cache, &tier);
                scope.spawn(move || {
                    let mut random = Random::new(seed * 10 + thread);
                    // Each thread changes keys of its own.
                    let mut latest = [None; 40];
                    for version in 1..600_u64 {
                        let own = random.below(40);
                        let key = thread * 40 + own;
                        let latest = &mut latest[own as usize];
                        match random.below(12) {
                            0 => {
                                cache.remove(&key).unwrap();
                                *latest = None;
                            }
                            1..4 => {
                                cache.insert(key, &value(key, version)).unwrap();
                                *latest = Some(version);
                            }
                            4 => drop(cache.evict_to(random.below(1 << 19))),
                            // The tier loses the value: memory may still have it.
                            5 => drop(tier.remove(&[&key.to_le_bytes()]).unwrap()),
                            _ => match (&cache.get_batch(&[key])[0], *latest) {
                                (None, _) => {}
                                (Some(found), Some(latest)) => {
                                    assert_eq!(found.bytes(), value(key, latest), "{key}");
                                }
                                (Some(_), None) => panic!("{key} was removed"),
                            },
                        }
                    }
                });
            }
        });
        let stats = tier.stats();
        assert!(stats.unchanged > 20, "seed {seed}: {stats:?}");
        assert_eq!((stats.checksum_misses, stats.io_misses), (0, 0), "seed {seed}");
        cache.check().unwrap();
    }
}

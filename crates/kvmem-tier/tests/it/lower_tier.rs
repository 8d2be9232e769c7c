//! A disk tier below a cache.

use std::sync::Arc;

use kvmem::arena::PageSize;
use kvmem::cache::KvCache;
use kvmem::pool::Pool;
use kvmem::tier::{Tier, WriteBehind};
use kvmem_testkit::random::Random;
use kvmem_tier::{Admission, DiskTier, DiskTierOptions};

use crate::simulated::Disk;

fn cache(disk: &Disk) -> (Arc<DiskTier<Disk>>, KvCache<u64>) {
    let options = DiskTierOptions { max_entries: Some(1000), ..DiskTierOptions::default() };
    let (tier, _) = DiskTier::on(disk.clone(), &options).unwrap();
    let tier = Arc::new(tier);
    let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
    let lower: Arc<DiskTier<Disk>> = Arc::clone(&tier);
    let cache = KvCache::builder(&pool).lower_tier(lower).seed(1).build().unwrap();
    (tier, cache)
}

fn value(key: u64, version: u64) -> Vec<u8> {
    let len = 10_000 + (key * 777 % 5000) as usize;
    (key << 32 | version).to_le_bytes().into_iter().cycle().take(len).collect()
}

/// Threads insert, remove, clear and look up: what is found is never older than what its thread
/// knows to be the latest.
#[test]
fn a_value_that_was_replaced_or_removed_never_comes_back() {
    let disk = Disk::new(16 << 20, 1);
    let (_, cache) = cache(&disk);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let cache = &cache;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                // Each thread has keys of its own, so it knows the latest version.
                let mut latest = [None; 40];
                for version in 1..=400 {
                    let i = random.below(40) as usize;
                    let key = thread * 40 + i as u64;
                    match random.below(8) {
                        0 => {
                            cache.remove(&key).unwrap();
                            latest[i] = None;
                        }
                        1..4 => {
                            cache.insert(key, &value(key, version)).unwrap();
                            latest[i] = Some(version);
                        }
                        _ => match (&cache.get_batch(&[key])[0], latest[i]) {
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
    cache.clear().unwrap();
    let keys: Vec<u64> = (0..160).collect();
    assert!(cache.get_batch(&keys).iter().all(Option::is_none));
    cache.check().unwrap();
}

/// The program chooses by key and value. An older value of a key that it rejects is not found.
#[test]
fn the_program_chooses_what_is_written() {
    let admission = Admission::custom(|key: &[u8], value: &[u8]| key[0] < 50 && value[0] == 0);
    let options = DiskTierOptions { admission, ..DiskTierOptions::default() };
    let (tier, _) = DiskTier::on(Disk::new(16 << 20, 1), &options.clone()).unwrap();
    let tier = Arc::new(tier);
    let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
    let lower: Arc<DiskTier<Disk>> = Arc::clone(&tier);
    let cache = KvCache::builder(&pool).lower_tier(lower).build().unwrap();
    for key in 0..200 {
        cache.insert(key, &value(key, 0)).unwrap();
    }
    cache.evict_to(0);
    let stats = tier.stats();
    assert_eq!((stats.entries, stats.not_admitted), (50, 150), "{stats:?}");
    // Another version begins with another byte.
    for key in 0..20 {
        cache.insert(key, &value(key, 1)).unwrap();
    }
    cache.evict_to(0);
    let keys: Vec<u64> = (0..60).collect();
    let found = cache.get_batch(&keys);
    for (key, found) in keys.iter().zip(found) {
        let expected = (20..50).contains(key).then(|| value(*key, 0));
        assert_eq!(found.map(|found| found.bytes().to_vec()), expected, "{key}");
    }
}

/// A policy that panics lets nothing older be found, and the tier goes on.
#[test]
fn a_panic_of_the_policy_leaves_nothing_older() {
    let admission = Admission::custom(|key: &[u8], value: &[u8]| {
        assert!(key[0] != 3 || value[0] == 0, "by the policy");
        true
    });
    let options = DiskTierOptions { admission, ..DiskTierOptions::default() };
    let (tier, _) = DiskTier::on(Disk::new(16 << 20, 1), &options).unwrap();
    let tier = Arc::new(tier);
    let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
    let lower: Arc<DiskTier<Disk>> = Arc::clone(&tier);
    let cache: KvCache<u64> = KvCache::builder(&pool).lower_tier(lower).build().unwrap();
    cache.insert(3, &value(3, 0)).unwrap();
    cache.evict_to(0);
    assert_eq!(tier.stats().entries, 1);
    cache.insert(3, &value(3, 1)).unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cache.evict_to(0)));
    assert!(caught.is_err());
    assert!(cache.get_batch(&[3])[0].is_none());
    cache.insert(4, &value(4, 0)).unwrap();
    cache.evict_to(0);
    assert_eq!(cache.get_batch(&[4])[0].as_ref().unwrap().bytes(), value(4, 0));
}

/// Damaged values are misses, and a tier that stores nothing any more gives up older values.
#[test]
fn a_failing_disk_is_a_smaller_cache() {
    let disk = Disk::new(16 << 20, 1);
    let (tier, cache) = cache(&disk);
    for key in 0..200 {
        cache.insert(key, &value(key, 0)).unwrap();
    }
    disk.fail_once_in(4);
    let mut found = 0;
    for key in 0..200 {
        if let Some(pinned) = &cache.get_batch(&[key])[0] {
            assert_eq!(pinned.bytes(), value(key, 0));
            found += 1;
        }
    }
    assert!((20..200).contains(&found), "{found}");
    for key in 0..200 {
        cache.insert(key, &value(key, 1)).unwrap();
    }
    disk.fail_once_in(0);
    for key in 0..200 {
        if let Some(pinned) = &cache.get_batch(&[key])[0] {
            assert_eq!(pinned.bytes(), value(key, 1));
        }
    }
    assert!(tier.stats().io_misses > 0);
}

/// A queue above the tier: values are written in batches, and a restart finds all of them.
#[test]
fn evicted_values_are_written_behind_in_batches() {
    let disk = Disk::new(16 << 20, 1);
    let options = DiskTierOptions { max_entries: Some(1000), ..DiskTierOptions::default() };
    let tier = Arc::new(DiskTier::on(disk.clone(), &options).unwrap().0);
    let pool = Pool::builder("4 MiB").ladder(PageSize::Base).build().unwrap();
    let behind = WriteBehind::builder(&pool, tier.clone()).max_bytes(1 << 20).build().unwrap();
    let behind: Arc<WriteBehind> = Arc::new(behind);
    let lower: Arc<dyn Tier> = Arc::clone(&behind) as _;
    let cache = KvCache::builder(&pool).lower_tier(lower).build().unwrap();
    for key in 0..300 {
        cache.insert(key, &value(key, 0)).unwrap();
    }
    cache.evict_to(0);
    behind.sync().unwrap();
    let (stats, queue) = (tier.stats(), behind.stats());
    assert_eq!((stats.entries, queue.written, queue.values), (300, 300, 0));
    assert!(queue.batches < 300 && queue.max_bytes <= 1 << 20, "{queue:?}");
    cache.insert(300, &value(300, 0)).unwrap();
    cache.evict_to(0);
    drop((cache, behind, tier));
    let (_, second) = self::cache(&disk);
    let keys: Vec<u64> = (0..=300).collect();
    for keys in keys.chunks(20) {
        for (key, found) in keys.iter().zip(second.get_batch(keys)) {
            assert_eq!(found.unwrap().bytes(), value(*key, 0));
        }
    }
}

/// All that is written counts for the rate. What the program stores itself is written nevertheless,
/// and evicted values are dropped until the rate has made up for it.
#[test]
fn the_rate_holds_for_everything_that_is_written() {
    let options = DiskTierOptions {
        max_write_bytes_per_s: Some(10_000_000),
        max_entries: Some(1000),
        ..DiskTierOptions::default()
    };
    let (tier, _) = DiskTier::on(Disk::new(40 << 20, 1), &options).unwrap();
    let tier = Arc::new(tier);
    let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
    let lower: Arc<DiskTier<Disk>> = Arc::clone(&tier);
    let cache: KvCache<u64> = KvCache::builder(&pool).lower_tier(lower).build().unwrap();
    cache.insert(0, &value(0, 0)).unwrap();
    cache.evict_to(0);
    assert_eq!((tier.stats().stored, tier.stats().not_admitted), (1, 0));
    // Far more than a second's worth: as much as 300 s make up for.
    let long = vec![1; 30 << 20];
    for _ in 0..100 {
        tier.store(&[(b"long", &long)]).remove(0).unwrap();
    }
    cache.insert(1, &value(1, 0)).unwrap();
    cache.evict_to(0);
    assert_eq!((tier.stats().stored, tier.stats().not_admitted), (101, 1));
}

//! A disk tier below a cache.

use std::sync::Arc;

use kvmem::arena::PageSize;
use kvmem::cache::KvCache;
use kvmem::pool::Pool;
use kvmem::tier::{Tier, WriteBehind};
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

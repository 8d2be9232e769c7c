//! Two tiers, one below the other.

use std::sync::Arc;

use kvmem::arena::PageSize;
use kvmem::cache::KvCache;
use kvmem::pool::Pool;
use kvmem::tier::{Chain, Tier, WriteBehind};
use kvmem_tier::{DiskTier, DiskTierOptions};

use crate::simulated::Disk;

fn tier(len: usize, seed: u64) -> (Disk, Arc<DiskTier<Disk>>) {
    let disk = Disk::new(len, seed);
    let options = DiskTierOptions { max_entries: Some(1000), ..DiskTierOptions::default() };
    let tier = DiskTier::on(disk.clone(), &options).unwrap().0;
    (disk, Arc::new(tier))
}

fn value(key: u64, version: u64) -> Vec<u8> {
    (key << 32 | version).to_le_bytes().into_iter().cycle().take(10_000).collect()
}

type Tiers = (Disk, Arc<DiskTier<Disk>>);

/// A cache above a small tier above a large one.
fn chained(behind: bool) -> (Tiers, Tiers, KvCache<u64>) {
    let (upper, lower) = (tier(2 << 20, 1), tier(16 << 20, 2));
    let chain = Chain::new(upper.1.clone(), lower.1.clone());
    let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
    let tier: Arc<dyn Tier> = if behind {
        Arc::new(WriteBehind::builder(&pool, Arc::new(chain)).build().unwrap())
    } else {
        Arc::new(chain)
    };
    let cache = KvCache::builder(&pool).lower_tier(tier).build().unwrap();
    (upper, lower, cache)
}

#[test]
fn the_lower_tier_has_what_the_upper_one_evicts() {
    for behind in [false, true] {
        let ((_, upper), (_, lower), cache) = chained(behind);
        for key in 0..500 {
            cache.insert(key, &value(key, 0)).unwrap();
        }
        for key in 0..500 {
            let found = cache.get_batch(&[key]);
            assert_eq!(found[0].as_ref().expect("it is in one of them").bytes(), value(key, 0));
        }
        let (upper, lower) = (upper.stats(), lower.stats());
        assert!(upper.evictions > 100 && lower.evictions == 0, "{upper:?}");
        assert!(upper.hits + lower.hits >= 350 && lower.hits > 100, "{upper:?} {lower:?}");
    }
}

#[test]
fn a_value_that_was_fetched_from_the_lower_tier_returns_to_the_upper_one() {
    let ((_, upper), _, cache) = chained(false);
    for key in 0..500 {
        cache.insert(key, &value(key, 0)).unwrap();
    }
    let gone = (0..500_u64).find(|key| upper.len_of(&key.to_le_bytes()).is_none()).unwrap();
    assert!(cache.get_batch(&[gone])[0].is_some());
    cache.evict_to(0);
    assert_eq!(upper.len_of(&gone.to_le_bytes()), Some(10_000));
}

/// Whichever of the two has it, a value may be found.
#[test]
fn a_chain_may_have_what_either_tier_may_have() {
    let [(_, upper), (_, lower)] = [1, 2].map(|seed| tier(1 << 20, seed));
    let chain = Chain::new(upper.clone(), lower.clone());
    upper.store(&[(b"above", b"value")]).remove(0).unwrap();
    lower.store(&[(b"below", b"value")]).remove(0).unwrap();
    let keys: [&[u8]; 3] = [b"above", b"below", b"none"];
    assert_eq!(keys.map(|key| chain.may_have(key)), [true, true, false]);
}

#[test]
fn removals_reach_both_tiers() {
    let ((_, upper), (_, lower), cache) = chained(true);
    for key in 0..200 {
        cache.insert(key, &value(key, 0)).unwrap();
    }
    cache.remove(&7).unwrap();
    assert!(cache.get_batch(&[7])[0].is_none());
    cache.clear().unwrap();
    let keys: Vec<u64> = (0..200).collect();
    assert!(cache.get_batch(&keys).iter().all(Option::is_none));
    assert_eq!((upper.stats().entries, lower.stats().entries), (0, 0));
}

/// A tier that fails does not bring back an older value, whichever of the two it is.
#[test]
fn a_tier_that_fails_brings_nothing_older_back() {
    for failing in 0..2 {
        for behind in [false, true] {
            let (upper, lower, cache) = chained(behind);
            for key in 0..300 {
                cache.insert(key, &value(key, 0)).unwrap();
            }
            let disk = if failing == 0 { &upper.0 } else { &lower.0 };
            disk.fail_once_in(3);
            for key in 0..300 {
                cache.insert(key, &value(key, 1)).unwrap();
            }
            cache.evict_to(0);
            disk.fail_once_in(0);
            for key in 0..300 {
                if let Some(found) = &cache.get_batch(&[key])[0] {
                    assert_eq!(found.bytes(), value(key, 1), "{key}");
                }
            }
        }
    }
}

//! Which block goes, and that a policy can do no harm.

use std::collections::HashSet;
use std::sync::Arc;

use kvmem::pool::KvCache;
use kvmem::pool::kv_cache::{Eviction, KvCacheError, Policy, Slot};

use super::{held, one_shard, pool};

/// Hits among `keys`, those that miss being inserted.
fn uses(cache: &KvCache<u64>, keys: impl IntoIterator<Item = u64>) -> usize {
    let mut hits = 0;
    for key in keys {
        match cache.get(&key) {
            Some(pinned) => {
                assert_eq!(pinned.bytes(), [key as u8; 100]);
                hits += 1;
            }
            None => cache.insert(key, &[key as u8; 100]).unwrap(),
        }
    }
    hits
}

#[test]
fn a_scan_drives_out_everything_under_lru_and_little_under_the_other() {
    for (eviction, shards, least, most) in [
        (Eviction::Lru, 1, 0, 0),
        (Eviction::Lru, 4, 0, 0),
        (Eviction::ScanResistant, 1, 450, 500),
        (Eviction::ScanResistant, 4, 420, 500),
    ] {
        let pool = pool(1 << 20);
        let builder = KvCache::<u64>::builder(&pool).eviction(eviction).shards(shards).blocks_at_most(1000);
        let cache = builder.build().unwrap();
        for round in 0..10 {
            uses(&cache, 0..500);
            uses(&cache, 10_000 + round * 300..10_000 + (round + 1) * 300);
        }
        uses(&cache, 0..500);
        uses(&cache, 100_000..105_000);
        let left = held(&cache, 0..500).len();
        assert!((least..=most).contains(&left), "{:?}: {left} of 500 are left", cache.eviction());
        cache.check().unwrap();
        assert_eq!(cache.evict_to(0), 0);
    }
}

#[test]
fn under_every_policy_all_but_the_pinned_can_go() {
    for eviction in [Eviction::Lru, Eviction::ScanResistant] {
        let pool = pool(1 << 20);
        let cache = one_shard(&pool, |builder| builder.eviction(eviction).blocks_at_most(100));
        uses(&cache, (0..400).map(|key| key * key % 150));
        let kept = held(&cache, 0..150)[37];
        let pinned = cache.get(&kept).unwrap();
        for key in 1000..1500 {
            cache.insert(key, &[key as u8; 100]).unwrap();
        }
        assert!(cache.contains(&kept));
        assert_eq!(cache.evict_to(0), 100);
        assert_eq!(held(&cache, 0..1500), [kept]);
        drop(pinned);
        assert_eq!(cache.evict_to(0), 0);
        cache.check().unwrap();
    }
}

/// Answers as it likes.
struct Liar(u64);

impl Policy for Liar {
    fn insert(&mut self, _: Slot, _: u64) {}
    fn touch(&mut self, _: Slot) {}
    fn remove(&mut self, _: Slot) {}
    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.0 = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        let slot = (self.0 >> 40) as Slot % 16;
        may_go(slot);
        may_go(Slot::MAX);
        Some(if self.0.is_multiple_of(3) { Slot::MAX } else { slot })
    }
}

#[test]
fn a_policy_that_lies_evicts_badly_and_harms_nothing() {
    let pool = pool(64 << 10);
    let liar = Eviction::Custom(Arc::new(|| Box::new(Liar(1))));
    assert_eq!(liar.name(), "custom");
    let cache = one_shard(&pool, |builder| builder.eviction(liar).blocks_at_most(8));
    cache.insert(1000, &[1; 10]).unwrap();
    let pinned = cache.get(&1000).unwrap();
    let (mut done, mut refused) = (0, 0);
    for key in 0..500 {
        match cache.insert(key, &[key as u8; 10]) {
            Ok(()) => done += 1,
            Err(KvCacheError::NothingToEvict { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(cache.len() <= 8 && cache.contains(&1000));
        cache.check().unwrap();
    }
    assert!(done > 50 && refused > 50, "{done} done, {refused} refused");
    assert_eq!(pinned.bytes(), [1; 10]);
    let left: HashSet<u64> = held(&cache, 0..500).into_iter().collect();
    assert!(left.iter().all(|key| cache.get(key).unwrap().bytes() == [*key as u8; 10]));
}

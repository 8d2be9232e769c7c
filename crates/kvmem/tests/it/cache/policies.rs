//! Which block is evicted, and that no policy can damage the cache.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread;

use kvmem::cache::KvCache;
use kvmem::cache::{Eviction, EvictionPolicy, KvCacheError, Slot};

use super::{held, one_shard, pool};

/// Looks up `keys` and inserts those that miss; returns the number of hits.
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
fn a_scan_evicts_everything_under_lru_and_little_under_scan_resistant() {
    for (eviction, shards, least, most) in [
        (Eviction::Lru, 1, 0, 0),
        (Eviction::Lru, 4, 0, 0),
        (Eviction::ScanResistant, 1, 450, 500),
        (Eviction::ScanResistant, 4, 420, 500),
    ] {
        let pool = pool(1 << 20);
        let builder =
            KvCache::<u64>::builder(&pool).eviction(eviction).shards(shards).max_blocks(1000);
        let cache = builder.build().unwrap();
        // Learning takes some rounds.
        for round in 0..40 {
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

/// Fetching ahead is not a use, and not a look-up.
#[test]
fn prefetching_changes_nothing() {
    for (eviction, shards) in [(Eviction::Lru, 1), (Eviction::Lru, 8), (Eviction::ScanResistant, 4)]
    {
        let pool = pool(1 << 20);
        let builder = KvCache::<u64>::builder(&pool).eviction(eviction).shards(shards);
        let cache = builder.max_blocks(100).exact_recency(true).build().unwrap();
        uses(&cache, 0..100);
        let before = cache.stats();
        // More keys than are fetched at once, some of them absent.
        cache.prefetch(&(0..1000).rev().collect::<Vec<u64>>());
        cache.prefetch::<u64>(&[]);
        // As many keys as are fetched at once, and any iterator of references.
        cache.prefetch(&[7u64; 16]);
        cache.prefetch((0..40).collect::<Vec<u64>>().iter().step_by(2));
        assert_eq!(cache.stats(), before);
        if shards == 1 {
            // The order is as before: the first that were inserted are evicted first.
            uses(&cache, 1000..1050);
            assert_eq!(held(&cache, 0..100), (50..100).collect::<Vec<u64>>());
        }
        cache.check().unwrap();
    }
}

#[test]
fn every_policy_can_evict_all_but_pinned_values() {
    for eviction in [Eviction::Lru, Eviction::ScanResistant] {
        let pool = pool(1 << 20);
        let cache = one_shard(&pool, |builder| builder.eviction(eviction).max_blocks(100));
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

/// A policy that returns arbitrary victims.
struct Liar(u64);

impl EvictionPolicy for Liar {
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
    let cache = one_shard(&pool, |builder| builder.eviction(liar).max_blocks(8));
    cache.insert(1000, &[1; 10]).unwrap();
    let pinned = cache.get(&1000).unwrap();
    let (mut done, mut failed) = (0, 0);
    for key in 0..500 {
        match cache.insert(key, &[key as u8; 10]) {
            Ok(()) => done += 1,
            Err(KvCacheError::NothingToEvict { .. }) => failed += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(cache.len() <= 8 && cache.contains(&1000));
        cache.check().unwrap();
    }
    assert!(done > 50 && failed > 50, "{done} done, {failed} failed");
    assert_eq!(pinned.bytes(), [1; 10]);
    let left: HashSet<u64> = held(&cache, 0..500).into_iter().collect();
    assert!(left.iter().all(|key| cache.get(key).unwrap().bytes() == [*key as u8; 10]));
}

/// A call of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Insert(Slot),
    Touch(Slot),
    Remove(Slot),
    Victim,
}

/// A policy that records its calls and returns no victim.
struct Recording(Arc<Mutex<Vec<Call>>>);

impl EvictionPolicy for Recording {
    fn insert(&mut self, slot: Slot, _: u64) {
        self.0.lock().unwrap().push(Call::Insert(slot));
    }
    fn touch(&mut self, slot: Slot) {
        self.0.lock().unwrap().push(Call::Touch(slot));
    }
    fn remove(&mut self, slot: Slot) {
        self.0.lock().unwrap().push(Call::Remove(slot));
    }
    fn victim(&mut self, _: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.0.lock().unwrap().push(Call::Victim);
        None
    }
}

#[test]
fn a_policy_hears_of_each_use_once_before_the_next_change() {
    let pool = pool(64 << 10);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let recording = Eviction::Custom(Arc::new({
        let calls = calls.clone();
        move || Box::new(Recording(calls.clone()))
    }));
    let cache = one_shard(&pool, |builder| builder.eviction(recording));
    let all = 0..200 as Slot;
    all.clone().for_each(|key| cache.insert(u64::from(key), &[1; 10]).unwrap());
    calls.lock().unwrap().clear();
    // Slots are assigned from 0 up. There are more uses than the access buffer holds. A repeated
    // use is not reported again.
    let get = |key: Slot| assert!(cache.get(&u64::from(key)).is_some());
    for _ in 0..3 {
        all.clone().for_each(get);
        assert!(cache.get(&1000).is_none() && cache.contains(&7));
    }
    drop(cache.remove(&3));
    let touched: Vec<Call> = all.clone().map(Call::Touch).collect();
    let mut seen = std::mem::take(&mut *calls.lock().unwrap());
    assert_eq!(seen.pop(), Some(Call::Remove(3)));
    assert_eq!(seen, touched);
    // After a change they are reported again; the search for a victim is a change too.
    [5, 9, 5].into_iter().for_each(get);
    assert_eq!(cache.evict_to(0), 1990);
    [9, 5].into_iter().for_each(get);
    cache.insert(3, &[1; 10]).unwrap();
    let seen = std::mem::take(&mut *calls.lock().unwrap());
    use Call::{Insert, Touch, Victim};
    assert_eq!(seen, [Touch(5), Touch(9), Victim, Touch(9), Touch(5), Insert(3)]);
    // The uses of each thread are reported in its order.
    thread::scope(|scope| {
        for half in [0..100, 100..200] {
            scope.spawn(move || half.for_each(get));
        }
    });
    cache.clear_in_memory();
    let touched = std::mem::take(&mut *calls.lock().unwrap());
    let of = |half: std::ops::Range<Slot>| {
        let slots = touched
            .iter()
            .filter_map(|calls| if let Touch(slot) = calls { Some(*slot) } else { None });
        slots.filter(|slot| half.contains(slot)).collect::<Vec<_>>()
    };
    assert_eq!((of(0..100), of(100..200)), ((0..100).collect(), (100..200).collect()));
}

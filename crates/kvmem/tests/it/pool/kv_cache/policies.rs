//! Which block goes, and that a policy can do no harm.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread;

use kvmem::pool::KvCache;
use kvmem::pool::kv_cache::{Eviction, EvictionPolicy, KvCacheError, Slot};

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
        let builder =
            KvCache::<u64>::builder(&pool).eviction(eviction).shards(shards).max_blocks(1000);
        let cache = builder.build().unwrap();
        // What is learned takes some time.
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

#[test]
fn under_every_policy_all_but_the_pinned_can_go() {
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

/// Answers as it likes.
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

/// What a policy was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Insert(Slot),
    Touch(Slot),
    Remove(Slot),
    Victim,
}

/// Writes down what it is told, and has no victims.
struct Scribe(Arc<Mutex<Vec<Told>>>);

impl EvictionPolicy for Scribe {
    fn insert(&mut self, slot: Slot, _: u64) {
        self.0.lock().unwrap().push(Told::Insert(slot));
    }
    fn touch(&mut self, slot: Slot) {
        self.0.lock().unwrap().push(Told::Touch(slot));
    }
    fn remove(&mut self, slot: Slot) {
        self.0.lock().unwrap().push(Told::Remove(slot));
    }
    fn victim(&mut self, _: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.0.lock().unwrap().push(Told::Victim);
        None
    }
}

#[test]
fn a_policy_knows_of_each_use_once_before_anything_else() {
    let pool = pool(64 << 10);
    let told = Arc::new(Mutex::new(Vec::new()));
    let scribe = Eviction::Custom(Arc::new({
        let told = told.clone();
        move || Box::new(Scribe(told.clone()))
    }));
    let cache = one_shard(&pool, |builder| builder.eviction(scribe));
    let all = 0..200 as Slot;
    all.clone().for_each(|key| cache.insert(u64::from(key), &[1; 10]).unwrap());
    told.lock().unwrap().clear();
    // Slots are given from 0 up. More uses than find room in the notes; those that come again are
    // no news.
    let get = |key: Slot| assert!(cache.get(&u64::from(key)).is_some());
    for _ in 0..3 {
        all.clone().for_each(get);
        assert!(cache.get(&1000).is_none() && cache.contains(&7));
    }
    drop(cache.remove(&3));
    let touched: Vec<Told> = all.clone().map(Told::Touch).collect();
    let mut seen = std::mem::take(&mut *told.lock().unwrap());
    assert_eq!(seen.pop(), Some(Told::Remove(3)));
    assert_eq!(seen, touched);
    // After a change they are news again; a search is one, too.
    [5, 9, 5].into_iter().for_each(get);
    assert_eq!(cache.evict_to(0), 1990);
    [9, 5].into_iter().for_each(get);
    cache.insert(3, &[1; 10]).unwrap();
    let seen = std::mem::take(&mut *told.lock().unwrap());
    use Told::{Insert, Touch, Victim};
    assert_eq!(seen, [Touch(5), Touch(9), Victim, Touch(9), Touch(5), Insert(3)]);
    // Each thread's uses in its order.
    thread::scope(|scope| {
        for half in [0..100, 100..200] {
            scope.spawn(move || half.for_each(get));
        }
    });
    cache.clear();
    let touched = std::mem::take(&mut *told.lock().unwrap());
    let of = |half: std::ops::Range<Slot>| {
        let slots = touched
            .iter()
            .filter_map(|told| if let Touch(slot) = told { Some(*slot) } else { None });
        slots.filter(|slot| half.contains(slot)).collect::<Vec<_>>()
    };
    assert_eq!((of(0..100), of(100..200)), ((0..100).collect(), (100..200).collect()));
}

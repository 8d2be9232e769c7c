//! Which value is evicted, of one shard and of several.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};

use super::{Random, held, one_shard, pool};
use crate::cache::policy::{LARGE_SLACK, run, slack};
use crate::cache::{Eviction, EvictionPolicy, KvCache, Slot};
use crate::tier::TierHints;

/// Shards that an eviction compares.
const COMPARED: usize = 8;

/// Returns a cache that evicts beyond `blocks` values, and counts all uses. Its keys are always in
/// the same shards.
fn cache(eviction: Eviction, shards: usize, blocks: u64) -> KvCache<u64> {
    let pool = pool(64 * blocks as usize + (64 << 10));
    let builder = KvCache::<u64>::builder(&pool).eviction(eviction.clone()).shards(shards).seed(7);
    let cache = builder.max_blocks(blocks).exact_recency(true).build().expect("sensible settings");
    assert_eq!((cache.eviction().name(), cache.shards()), (eviction.name(), shards));
    cache
}

fn shard_of(cache: &KvCache<u64>, key: u64) -> usize {
    let place = cache.inner.hasher.hash_one(key) >> 32;
    place as usize & (cache.shards() - 1)
}

/// Returns a new key of a shard.
fn key_of(cache: &KvCache<u64>, shard: usize, after: u64) -> u64 {
    (after + 1..).find(|&key| shard_of(cache, key) == shard).expect("each shard has keys")
}

/// Has the policy of each shard learn of all uses now.
fn drain(cache: &KvCache<u64>) {
    cache.inner.shards.iter().for_each(|shard| drop(shard.state()));
}

fn insert(cache: &KvCache<u64>, key: u64) {
    cache.insert(key, &[key as u8; 16]).expect("there is something to evict");
}

/// Against a list of the values with the times of their last uses: each insertion evicts the
/// oldest value of the shards that it compares, and no other one. Before it has learned anything
/// the scan-resistant policy does the same.
#[test]
fn an_insertion_evicts_the_oldest_value_of_the_shards_that_it_compares() {
    for (eviction, shards, blocks, steps) in [
        (Eviction::Lru, 1, 12, 300),
        (Eviction::Lru, 2, 20, 500),
        (Eviction::Lru, 8, 40, 1000),
        (Eviction::Lru, 32, 100, 1000),
        (Eviction::ScanResistant, 1, 12, 250),
        (Eviction::ScanResistant, 4, 30, 250),
        (Eviction::ScanResistant, 16, 60, 250),
    ] {
        let cache = cache(eviction, shards, blocks);
        let what = format!("{:?}, {shards} shards", cache.eviction());
        let mut times: HashMap<u64, u64> = HashMap::new();
        let (mut random, mut commits, mut evictions) = (Random(3), 0, 0);
        for _ in 0..steps {
            let key = random.below(2 * blocks);
            match random.below(8) {
                0..3 => {
                    let found = cache.get_in_memory(&key);
                    assert_eq!(found.is_some(), times.contains_key(&key), "{what}: {key}");
                    drop(found);
                    drain(&cache);
                    times.entry(key).and_modify(|time| *time = commits);
                }
                3 => {
                    drop(cache.remove_in_memory(&key));
                    times.remove(&key);
                }
                _ => {
                    let is_full = times.len() as u64 == blocks;
                    let compared = (0..shards.min(COMPARED))
                        .map(|at| (shard_of(&cache, key) + at) % shards)
                        .collect::<Vec<_>>();
                    insert(&cache, key);
                    let own = times.remove(&key).is_some();
                    let gone: Vec<u64> = times
                        .keys()
                        .copied()
                        .filter(|other| !cache.contains_in_memory(other))
                        .collect();
                    if is_full && !own {
                        let is_compared =
                            |other: &u64| compared.contains(&shard_of(&cache, *other));
                        let oldest = times.keys().filter(|it| is_compared(it)).map(|it| times[it]);
                        let oldest = oldest.min().expect("these shards have some");
                        let [victim] = gone[..] else { panic!("{what}: {gone:?} are gone") };
                        assert!(is_compared(&victim), "{what}: {victim} is elsewhere");
                        assert_eq!(times.remove(&victim), Some(oldest), "{what}: {victim}");
                    } else {
                        assert!(gone.is_empty(), "{what}: {gone:?} are gone");
                    }
                    evictions += u64::from(is_full);
                    times.insert(key, commits);
                    commits += 1;
                }
            }
            let lens = cache.inner.shards.iter().map(|shard| shard.state().len());
            assert_eq!(lens.sum::<usize>(), times.len());
        }
        assert_eq!((cache.stats().evictions, cache.inner.commits()), (evictions, commits));
        cache.check().unwrap();
    }
}

#[test]
fn a_use_that_the_policy_has_not_learned_of_saves_the_value() {
    for eviction in [Eviction::Lru, Eviction::ScanResistant] {
        let cache = cache(eviction, 2, 4);
        let old = key_of(&cache, 0, 0);
        let middle = key_of(&cache, 1, old);
        let young = key_of(&cache, 0, middle);
        let youngest = key_of(&cache, 1, young);
        [old, middle, young, youngest].iter().for_each(|&key| insert(&cache, key));
        assert!(cache.get_in_memory(&old).is_some());
        // Its shard has published it as the oldest.
        cache.evict_to(3 * 16);
        assert!(!cache.contains_in_memory(&middle), "{:?}", cache.eviction());
        assert_eq!(cache.len_in_memory(), 3);
    }
}

/// Each look finds another shard whose oldest value was used meanwhile.
#[test]
fn the_shard_of_the_last_look_evicts_whatever_was_used_meanwhile() {
    let cache = cache(Eviction::Lru, 8, 17);
    let mut last = 0;
    let mut two: Vec<Vec<u64>> = vec![Vec::new(); 8];
    for _ in 0..2 {
        for (shard, keys) in two.iter_mut().enumerate() {
            last = key_of(&cache, shard, last);
            insert(&cache, last);
            keys.push(last);
        }
    }
    two.iter().for_each(|keys| drop(cache.get_in_memory(&keys[0])));
    cache.evict_to(15 * 16);
    assert!(!cache.contains_in_memory(&two[7][1]), "the younger value of the last shard");
    assert_eq!(cache.len_in_memory(), 15);
}

/// A policy that evicts in the order of insertion.
#[derive(Default)]
struct Fifo(Vec<Slot>);

impl EvictionPolicy for Fifo {
    fn insert(&mut self, slot: Slot, _: u64) {
        self.0.push(slot);
    }
    fn touch(&mut self, _: Slot) {}
    fn remove(&mut self, slot: Slot) {
        self.0.retain(|&other| other != slot);
    }
    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        let at = self.0.iter().position(|&slot| may_go(slot))?;
        Some(self.0.remove(at))
    }
}

#[test]
fn under_a_policy_of_the_caller_each_shard_evicts_for_itself_or_in_turn() {
    let fifo = Eviction::Custom(Arc::new(|| Box::new(Fifo::default())));
    let cache = cache(fifo, 4, 12);
    let mut keys: Vec<Vec<u64>> = vec![Vec::new(); 4];
    let mut last = 0;
    for shard in (0..4).cycle().take(12) {
        last = key_of(&cache, shard, last);
        insert(&cache, last);
        keys[shard].push(last);
    }
    // An insertion evicts from its own shard.
    for shard in [2, 2, 0] {
        last = key_of(&cache, shard, last);
        insert(&cache, last);
        assert!(!cache.contains_in_memory(&keys[shard].remove(0)), "the oldest of shard {shard}");
        keys[shard].push(last);
    }
    assert!(keys.iter().flatten().all(|key| cache.contains_in_memory(key)));
    // An eviction without an insertion takes one of each shard in turn.
    cache.evict_to(8 * 16);
    keys.iter_mut().for_each(|keys| assert!(!cache.contains_in_memory(&keys.remove(0))));
    assert!(keys.iter().flatten().all(|key| cache.contains_in_memory(key)));
    // If its own shard has none that may go, another one has.
    let pins: Vec<_> = keys[1].iter().map(|key| cache.get_in_memory(key).unwrap()).collect();
    for _ in 0..4 {
        last = key_of(&cache, 1, last);
        insert(&cache, last);
    }
    let full = (cache.len_in_memory(), cache.stats().evictions);
    assert_eq!(full, (12, 7), "there was room for these");
    let pins: Vec<_> = pins
        .into_iter()
        .chain((0..=last).filter_map(|key| {
            (shard_of(&cache, key) == 1).then(|| cache.get_in_memory(&key)).flatten()
        }))
        .collect();
    insert(&cache, key_of(&cache, 1, last));
    assert!(!cache.contains_in_memory(&keys[2][0]), "the shard behind it is the next");
    drop(pins);
    cache.check().unwrap();
}

#[test]
fn a_value_of_its_own_key_goes_first_unless_it_is_pinned() {
    for shards in [1, 4] {
        let cache = cache(Eviction::Lru, shards, 3);
        (0..3).for_each(|key| insert(&cache, key));
        insert(&cache, 2);
        assert_eq!(held(&cache, 0..9), [0, 1, 2]);
        assert_eq!((cache.stats().evictions, cache.stats().replacements), (1, 0));
        let pinned = cache.get_in_memory(&2).unwrap();
        insert(&cache, 2);
        assert_eq!(held(&cache, 0..9), [1, 2], "the oldest goes, and the pinned one is replaced");
        assert_eq!((cache.stats().evictions, cache.stats().replacements), (2, 1));
        assert_eq!(pinned.bytes(), [2; 16]);
    }
}

#[test]
fn a_full_cache_requests_no_space_that_it_would_have_to_free() {
    let cache = cache(Eviction::Lru, 2, 4);
    (0..4).for_each(|key| insert(&cache, key));
    let peak = || cache.pool().metrics().allocated;
    let (before, offsets) = (peak(), |key| cache.get_in_memory(&key).unwrap().block().offset());
    let own = offsets(0);
    insert(&cache, 0);
    assert_eq!((offsets(0), peak()), (own, before), "it takes over the block");
    cache.insert(1, &[1; 48]).unwrap();
    assert_eq!((cache.bytes(), peak()), (3 * 16 + 48, 3 * 16 + 48));
}

/// Returns whether the shard of a key may evict without a look at other shards.
fn is_allowed(cache: &KvCache<u64>, shard: usize) -> bool {
    cache.inner.shards[shard].state().is_allowed()
}

#[test]
#[cfg_attr(miri, ignore = "many insertions")]
fn a_shard_evicts_its_own_victim_if_that_is_nearly_the_oldest() {
    let blocks = 3 * 256;
    assert_eq!((slack(blocks), run(slack(blocks), 2)), (3, 0));
    for eviction in [Eviction::Lru, Eviction::ScanResistant] {
        let cache = cache(eviction.clone(), 2, blocks);
        // Shard 1 has the oldest ones.
        let (mut last, mut keys) = (0, [Vec::new(), Vec::new()]);
        for at in 0..blocks as usize {
            let shard = usize::from(at < 2 || (at >= 8 && at % 2 == 0));
            last = key_of(&cache, shard, last);
            insert(&cache, last);
            keys[shard].push(last);
        }
        // Returns how many of each shard have been evicted.
        let mut next = |shard| {
            last = key_of(&cache, shard, last);
            insert(&cache, last);
            let there = |key: &u64| cache.contains_in_memory(key);
            keys.each_ref().map(|keys| keys.iter().position(there).expect("most of them"))
        };
        let gone = [next(0), next(0), next(0)];
        if matches!(eviction, Eviction::Lru) {
            // The frontier is at the beginning: the first two of shard 0 are near enough.
            assert_eq!(gone, [[1, 0], [2, 0], [2, 1]]);
        } else {
            // Worths of so few values differ too much.
            assert_eq!(gone, [[0, 1], [0, 2], [1, 2]]);
        }
        assert!(!is_allowed(&cache, 0) && !is_allowed(&cache, 1));
    }
}

#[test]
fn a_search_compares_the_next_shards_for_each_further_victim() {
    for eviction in [Eviction::Lru, Eviction::ScanResistant] {
        let cache = cache(eviction, 32, 128);
        let mut firsts = Vec::new();
        let mut last = 0;
        for at in 0..128 {
            // In the first round each shard gets one, the last one first.
            last = key_of(&cache, 31 - at % 32, last);
            insert(&cache, last);
            firsts.push(last);
        }
        cache.evict_to(122 * 16);
        // The first of each eight shards, and the next of those that are compared again.
        let gone: Vec<usize> =
            (0..128).filter(|&at| !cache.contains_in_memory(&firsts[at])).collect();
        assert_eq!(gone, [0, 8, 16, 17, 24, 25], "{:?}", cache.eviction());
    }
}

#[test]
#[cfg_attr(miri, ignore = "many insertions")]
fn a_shard_of_a_large_cache_evicts_several_in_a_row() {
    let blocks = 256 * LARGE_SLACK;
    for (eviction, shards) in [
        (Eviction::Lru, 1),
        (Eviction::Lru, 2),
        (Eviction::ScanResistant, 1),
        (Eviction::ScanResistant, 2),
    ] {
        let cache = cache(eviction, shards, blocks);
        let mut all: Vec<u64> = Vec::new();
        (0..blocks).for_each(|key| insert(&cache, key));
        all.extend(0..blocks);
        let run = run(slack(blocks), shards);
        assert!(run >= 3);
        let mut last = blocks;
        for turn in 0..=run + 1 {
            last = key_of(&cache, 0, last);
            insert(&cache, last);
            let is_last = turn % (run + 1) == run;
            assert_eq!(is_allowed(&cache, 0), !is_last, "{turn} of {run}, {shards}");
            // All of them are the oldest of this shard.
            let oldest = all.iter().position(|&key| shard_of(&cache, key) == 0).unwrap();
            assert!(!cache.contains_in_memory(&all.remove(oldest)), "{turn} of {run}");
        }
        assert_eq!(cache.len_in_memory(), blocks);
        assert_eq!(cache.stats().evictions, u64::from(run) + 2);
    }
}

/// Uses that follow a scan: what was used again and again stays, over one shard and several.
#[test]
fn values_that_are_used_again_stay_before_newer_ones_that_are_not() {
    for shards in [1, 16] {
        let cache = cache(Eviction::ScanResistant, shards, 200);
        let mut scanned = 1000;
        let mut misses = 0;
        for round in 0..24 {
            for key in 0..60 {
                if cache.get_in_memory(&key).is_none() {
                    misses += u64::from(round >= 14);
                    insert(&cache, key);
                }
            }
            // LRU would hold these alone.
            for _ in 0..210 {
                scanned += 1;
                insert(&cache, scanned);
            }
        }
        assert!(misses <= 20, "{misses} of 600 uses were misses with {shards} shards");
        assert!(held(&cache, 0..60).len() >= 57);
        cache.check().unwrap();
    }
}

/// Records the calls of a policy.
struct Recording(Arc<Mutex<Vec<String>>>);

impl EvictionPolicy for Recording {
    fn insert(&mut self, slot: Slot, _: u64) {
        self.0.lock().unwrap().push(format!("insert {slot}"));
    }
    fn insert_at_depth(&mut self, slot: Slot, _: u64, depth: u32) {
        self.0.lock().unwrap().push(format!("insert {slot} at {depth}"));
    }
    fn touch(&mut self, slot: Slot) {
        self.0.lock().unwrap().push(format!("touch {slot}"));
    }
    fn remove(&mut self, slot: Slot) {
        self.0.lock().unwrap().push(format!("remove {slot}"));
    }
    fn victim(&mut self, _: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.0.lock().unwrap().push("victim".into());
        None
    }
}

#[test]
fn a_policy_learns_of_each_use_where_all_count_and_else_of_the_first_after_a_change() {
    for exact in [false, true] {
        let pool = pool(64 << 10);
        let calls: Arc<Mutex<Vec<String>>> = Arc::default();
        let made = Arc::clone(&calls);
        let recording = Eviction::Custom(Arc::new(move || Box::new(Recording(Arc::clone(&made)))));
        let cache =
            one_shard(&pool, |it| it.eviction(recording).exact_recency(exact).max_blocks(3));
        let take = || std::mem::take(&mut *calls.lock().unwrap()).join(", ");
        let hints = TierHints { depth: 5, ..TierHints::default() };
        cache.insert_with(1, b"one", hints).unwrap();
        insert(&cache, 2);
        assert_eq!(take(), "insert 0 at 5, insert 1 at 0");
        (0..3).for_each(|_| drop(cache.get_in_memory(&2)));
        // Leases of what is there are uses, too.
        (0..2).for_each(|_| drop(cache.lease(&1)));
        drop(cache.remove_in_memory(&1));
        let (once, each) = ("touch 1, touch 0, remove 0", "touch 1, touch 1, touch 1, ");
        let all = format!("{each}touch 0, touch 0, remove 0");
        assert_eq!(take(), if exact { all } else { once.into() });
        insert(&cache, 2);
        insert(&cache, 3);
        assert_eq!(take(), "touch 1, insert 0 at 0");
        cache.evict_to(0);
        assert_eq!(take(), "victim");
        cache.clear_in_memory();
        assert!(["remove 0, remove 1", "remove 1, remove 0"].contains(&&*take()));
    }
}

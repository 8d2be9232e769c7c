//! Panics in the caller's code: each of its calls panics in turn, and the cache stays sound.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use kvmem::cache::KvCache;
use kvmem::cache::{Eviction, EvictionPolicy, KvCacheBuilder, Slot};
use kvmem::pool::Pool;
use kvmem::tier::{BoxError, Lookup, StoreOutcome, Tier, TierHit, TierKey, TierRead, TierValue};

use super::pool;

const VALUE: usize = 1000;
const BLOCKS: u64 = 6;

thread_local! {
    /// The number of calls of the caller's code until one panics; 0 if none panics.
    static LEFT: Cell<u64> = const { Cell::new(0) };
    /// The kind of code that panicked.
    static AT: RefCell<Option<&'static str>> = const { RefCell::new(None) };
}

/// Counts one call of the caller's code, and panics if it is the chosen one. No panic starts while
/// another one unwinds, because two at once abort the process.
fn call(what: &'static str) {
    if LEFT.get() == 0 || thread::panicking() {
        return;
    }
    LEFT.set(LEFT.get() - 1);
    if LEFT.get() == 0 {
        AT.set(Some(what));
        // Bypasses the hook, which would print each panic.
        resume_unwind(Box::new(what));
    }
}

struct Key(u64);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        call("Eq");
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        call("Hash");
        self.0.hash(state);
    }
}

impl Clone for Key {
    fn clone(&self) -> Self {
        call("Clone");
        Key(self.0)
    }
}

impl TierKey for Key {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        call("key_bytes");
        Cow::Owned(self.0.to_le_bytes().to_vec())
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        call("Drop");
    }
}

/// First in, first out; asserts that slots are inserted and removed once.
#[derive(Default)]
struct Fifo(Vec<Slot>);

impl EvictionPolicy for Fifo {
    fn insert(&mut self, slot: Slot, _: u64) {
        call("insert");
        assert!(!self.0.contains(&slot), "it is inserted twice");
        self.0.push(slot);
    }

    fn touch(&mut self, slot: Slot) {
        call("touch");
        assert!(self.0.contains(&slot), "it is used and unknown");
    }

    fn remove(&mut self, slot: Slot) {
        call("remove");
        let at = self.0.iter().position(|&here| here == slot).expect("it is removed and unknown");
        self.0.remove(at);
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        call("victim");
        let at = self.0.iter().position(|&slot| may_go(slot))?;
        Some(self.0.remove(at))
    }
}

/// A way to build the cache.
type Build = fn(KvCacheBuilder<Key>) -> KvCacheBuilder<Key>;

fn own_policy(builder: KvCacheBuilder<Key>) -> KvCacheBuilder<Key> {
    builder.eviction(Eviction::Custom(Arc::new(|| Box::new(Fifo::default()))))
}

fn lru(builder: KvCacheBuilder<Key>) -> KvCacheBuilder<Key> {
    builder.max_bytes(5 * VALUE as u64)
}

fn scan_resistant(builder: KvCacheBuilder<Key>) -> KvCacheBuilder<Key> {
    builder.eviction(Eviction::ScanResistant).shards(2)
}

fn own_memory(builder: KvCacheBuilder<Key>) -> KvCacheBuilder<Key> {
    own_policy(builder).max_bytes(9 * VALUE as u64).with_allocator(|pool, len| {
        call("allocate");
        // Sometimes longer than requested.
        pool.allocate(len + LEFT.get() as usize % 3 * 100)
    })
}

/// A tier in memory, each method of which may panic before and after it has done its work.
#[derive(Default)]
struct Stored(Mutex<HashMap<Vec<u8>, Vec<u8>>>);

impl Stored {
    fn values(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls `work` between two calls of the caller's code.
fn between_calls<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    call(what);
    let done = work();
    call(what);
    done
}

impl Tier for Stored {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        between_calls("store", || {
            for value in values.iter().filter(|value| !value.is_superseded()) {
                self.values().insert(value.key.to_vec(), value.bytes.to_vec());
            }
            values.iter().map(|_| Ok(StoreOutcome::Stored)).collect()
        })
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        let len = |key: &&[u8]| {
            let values = self.values();
            values.get(*key).map_or(Lookup::Missing, |value| Lookup::Found(value.len() as u64))
        };
        between_calls("look_up", || keys.iter().map(len).collect())
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        let fetch = |read: &mut TierRead<'_>| {
            let values = self.values();
            let value = values.get(read.key).filter(|value| value.len() == read.into.len())?;
            read.into.copy_from_slice(value);
            Some(TierHit::default())
        };
        between_calls("fetch", || reads.iter_mut().map(fetch).collect())
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        between_calls("tier removes", || {
            keys.iter().for_each(|key| drop(self.values().remove(*key)));
            Ok(())
        })
    }

    fn clear(&self) -> Result<(), BoxError> {
        between_calls("tier clears", || {
            self.values().clear();
            Ok(())
        })
    }
}

fn lower_tier(builder: KvCacheBuilder<Key>) -> KvCacheBuilder<Key> {
    own_policy(builder).lower_tier(Arc::<Stored>::default())
}

fn evicting(builder: KvCacheBuilder<Key>) -> KvCacheBuilder<Key> {
    own_policy(builder).on_evict(|pinned| {
        call("evicted");
        drop(pinned);
        call("evicted");
    })
}

fn make(pool: &Pool, build: Build) -> KvCache<Key> {
    build(KvCache::builder(pool).shards(1).max_blocks(BLOCKS)).build().unwrap()
}

/// Uses every operation of a cache; each step may panic. Runs `between` after each step.
fn script(cache: &KvCache<Key>, between: &mut dyn FnMut()) {
    let key = |number: u64| Key(number);
    let steps: [&dyn Fn(); 15] = [
        &|| (0..8).for_each(|number| cache.insert(key(number), &[1; VALUE]).unwrap()),
        &|| (4..8).for_each(|number| drop(cache.get_in_memory(&key(number)))),
        &|| {
            cache
                .insert_filled(key(7), VALUE / 2, |bytes| {
                    call("fill");
                    bytes.fill(7)
                })
                .unwrap()
        },
        &|| {
            let pinned = cache.get_in_memory(&key(6));
            cache.insert(key(6), &[2; VALUE]).unwrap();
            (20..25).for_each(|number| cache.insert(key(number), &[1; VALUE]).unwrap());
            drop(pinned);
        },
        &|| drop(cache.remove_in_memory(&key(24))),
        &|| drop(cache.reserve(key(30), VALUE).unwrap()),
        &|| drop(cache.reserve(key(30), VALUE).unwrap().commit()),
        &|| drop(cache.remove(&key(30)).unwrap()),
        &|| drop(cache.get(&key(0))),
        &|| drop(cache.get_batch(&[key(1), key(2), key(31)])),
        &|| assert!(cache.contains(&key(7)) || !cache.contains(&key(31))),
        &|| assert!(!cache.contains_in_memory(&key(99))),
        &|| assert!(cache.evict_to(2 * VALUE as u64) <= 2 * VALUE as u64),
        &|| cache.clear().unwrap(),
        &|| {
            (0..3).for_each(|number| cache.insert(key(number), &[1; VALUE]).unwrap());
            cache.clear_in_memory();
        },
    ];
    for step in steps {
        step();
        between();
    }
}

/// Asserts that the counters of the cache are consistent, and that it accepts new values.
fn is_whole(cache: &KvCache<Key>, pool: &Pool, said: &str) {
    let held = |cache: &KvCache<Key>| {
        let pinned = (0..100).filter_map(|number| cache.get_in_memory(&Key(number)));
        pinned.fold((0, 0), |(blocks, bytes), pinned| {
            (blocks + 1, bytes + pinned.block().len() as u64)
        })
    };
    cache.check().unwrap_or_else(|error| panic!("{said}: {error}"));
    let charged = (cache.len(), cache.bytes());
    assert_eq!(held(cache), charged, "{said}: held and charged");
    assert_eq!(pool.metrics().allocated, cache.bytes(), "{said}: allocated");
    let stats = cache.stats();
    let removed = stats.evictions + stats.removals + stats.replacements;
    assert_eq!(stats.insertions - removed, stats.blocks, "{said}: {stats:?}");
    for number in 40..40 + 3 * BLOCKS {
        cache.insert(Key(number), &[3; VALUE]).unwrap_or_else(|error| panic!("{said}: {error}"));
    }
    cache.check().unwrap_or_else(|error| panic!("{said}: {error}"));
    assert_eq!(held(cache), (cache.len(), cache.bytes()), "{said}: held and charged");
    cache.clear_in_memory();
    assert_eq!(
        (cache.len(), cache.bytes(), pool.metrics().allocated),
        (0, 0, 0),
        "{said}: cleared"
    );
}

#[test]
#[cfg_attr(miri, ignore = "many thousand rounds")]
fn a_panic_at_any_call_of_the_callers_code_leaves_the_cache_whole() {
    let builds: [(&str, Build); 6] = [
        ("own policy", own_policy),
        ("LRU", lru),
        ("scan-resistant", scan_resistant),
        ("own memory", own_memory),
        ("eviction callback", evicting),
        ("lower tier", lower_tier),
    ];
    let mut kinds = std::collections::BTreeSet::new();
    for (name, build) in builds {
        for at in 1.. {
            assert!(at < 10_000, "{name}: the script ends");
            let pool = pool(64 << 10);
            let cache = make(&pool, build);
            LEFT.set(at);
            let done = catch_unwind(AssertUnwindSafe(|| script(&cache, &mut || ())));
            LEFT.set(0);
            let Some(kind) = AT.take() else {
                done.unwrap_or_else(|_| panic!("{name}: the script panicked by itself"));
                assert!(at > 50, "{name}: {at} calls");
                break;
            };
            kinds.insert(kind);
            let said = format!("{name}: {kind}, call {at}");
            is_whole(&cache, &pool, &said);
            // Every key can be fetched again once the cache is cleared.
            cache.clear().unwrap();
            for number in 0..if name == "lower tier" { 40 } else { 0 } {
                cache.insert(Key(number), &[4; VALUE]).unwrap();
                cache.evict_to(0);
                assert!(cache.get(&Key(number)).is_some(), "{said}: {number}");
            }
            drop(cache);
            assert_eq!(pool.metrics().allocated, 0, "{said}");
        }
    }
    let all = [
        "Clone",
        "Drop",
        "Eq",
        "Hash",
        "allocate",
        "evicted",
        "fetch",
        "fill",
        "insert",
        "key_bytes",
        "look_up",
        "remove",
        "store",
        "tier clears",
        "tier removes",
        "touch",
        "victim",
    ];
    assert!(kinds.into_iter().eq(all), "all of them are called");
}

#[test]
#[cfg_attr(miri, ignore = "many thousand rounds")]
fn a_script_goes_on_after_each_panic() {
    // One cache throughout, and a panic every few calls.
    for every in 3..40 {
        for build in
            [own_policy, lru, scan_resistant, own_memory, evicting, lower_tier] as [Build; 6]
        {
            let pool = pool(64 << 10);
            let cache = make(&pool, build);
            for _ in 0..20 {
                LEFT.set(every);
                let _ = catch_unwind(AssertUnwindSafe(|| script(&cache, &mut || LEFT.set(every))));
                LEFT.set(0);
                AT.take();
                cache.check().unwrap();
            }
            is_whole(&cache, &pool, &format!("every {every}"));
        }
    }
}

/// A policy that panics at its first `touch` and counts its insertions.
struct Fragile(Arc<AtomicU64>);

impl EvictionPolicy for Fragile {
    fn insert(&mut self, _: Slot, _: u64) {
        // Relaxed: a single thread counts.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn touch(&mut self, _: Slot) {
        resume_unwind(Box::new("touch"));
    }

    fn remove(&mut self, _: Slot) {}

    fn victim(&mut self, _: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        None
    }
}

#[test]
fn a_policy_that_panicked_is_not_called_again_and_lru_takes_its_place() {
    let pool = pool(64 << 10);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let fragile = Eviction::Custom(Arc::new(move || Box::new(Fragile(Arc::clone(&counted)))));
    let cache = super::one_shard(&pool, |builder| builder.eviction(fragile).max_blocks(4));
    (0..4).for_each(|key| cache.insert(key, &[1; 10]).unwrap());
    drop(cache.get(&0));
    assert!(catch_unwind(AssertUnwindSafe(|| cache.insert(9, &[1; 10]))).is_err());
    drop(cache.get(&2));
    // At first LRU has the order of slots, and from then on that of uses.
    (4..7).for_each(|key| cache.insert(key, &[1; 10]).unwrap());
    assert_eq!(cache.len(), 4);
    assert!(cache.contains(&2));
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    cache.check().unwrap();
}

//! Two tiers: a lookup returns the latest value or nothing, whatever happens while a value is
//! fetched, handed to the eviction sink or invalidated.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use proptest::collection::vec;
use proptest::prelude::*;

use super::{is_valid, pool};
use crate::cache::leases::{Lease, Leased};
use crate::cache::{KvCache, Pinned};

/// A step. A step with a number runs that many of the next steps in its middle: while a value is
/// being handed over, or while the lower tier is being invalidated.
#[derive(Clone, Debug)]
enum Step {
    Put(u64),
    Remove(u64, usize),
    Clear(usize),
    Evict(usize),
    Get(u64),
    Lease(u64),
    Read(usize),
    Commit(usize),
    GiveUp(usize),
}

const KEYS: u64 = 4;

fn step() -> impl Strategy<Value = Step> {
    let nested = || 0..4_usize;
    let place = any::<usize>;
    prop_oneof![
        6 => (0..KEYS).prop_map(Step::Put),
        2 => (0..KEYS, nested()).prop_map(|(key, steps)| Step::Remove(key, steps)),
        1 => nested().prop_map(Step::Clear),
        6 => nested().prop_map(Step::Evict),
        4 => (0..KEYS).prop_map(Step::Get),
        6 => (0..KEYS).prop_map(Step::Lease),
        6 => place().prop_map(Step::Read),
        6 => place().prop_map(Step::Commit),
        1 => place().prop_map(Step::GiveUp),
    ]
}

/// A fetch in flight.
struct Fetch {
    key: u64,
    lease: Lease<u64>,
    /// The length of the history when the lease was taken.
    since: usize,
    /// The value that the tier had when it was read, if it was read.
    read: Option<Option<u64>>,
}

#[derive(Default)]
struct State {
    steps: VecDeque<Step>,
    /// Insertions and removals in order: the key, or `None` for all keys.
    history: Vec<Option<u64>>,
    /// The version that was put last and not removed since, with the length of the history then.
    latest: HashMap<u64, (u64, usize)>,
    tier: HashMap<u64, u64>,
    fetches: Vec<Fetch>,
    /// Keys that are on their way to the tier, or being invalidated there.
    blocked: Vec<Option<u64>>,
    versions: u64,
    committed: u64,
    superseded: u64,
}

impl State {
    /// Returns whether the key was put or removed since; the naive way.
    fn changed(&self, key: u64, since: usize) -> bool {
        self.history[since..].iter().any(|change| change.is_none_or(|changed| changed == key))
    }
}

/// The cache, the tier, and the expected state of both.
struct World {
    cache: OnceLock<KvCache<u64>>,
    state: Mutex<State>,
}

fn version(pinned: &Pinned<u64>) -> u64 {
    u64::from_le_bytes(pinned.bytes().try_into().unwrap())
}

impl World {
    fn cache(&self) -> &KvCache<u64> {
        self.cache.get().expect("it is made first")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Runs up to `max` of the next steps.
    fn run(&self, max: usize) {
        for _ in 0..max {
            let Some(step) = self.state().steps.pop_front() else { return };
            self.take(&step);
        }
    }

    /// The eviction sink. The value arrives in the tier after `steps` steps, if it is still the
    /// latest.
    fn evicted(&self, pinned: &Pinned<u64>, steps: usize) {
        let (key, since) = (*pinned.key(), self.state().history.len());
        self.state().blocked.push(Some(key));
        self.run(steps);
        let mut state = self.state();
        let old = state.changed(key, since);
        assert_eq!(pinned.is_superseded(), old, "key {key}");
        if old {
            state.superseded += 1;
        } else if version(pinned).is_multiple_of(5) {
            // The sink does not store every value.
            state.tier.remove(&key);
        } else {
            state.tier.insert(key, version(pinned));
        }
        let at = state.blocked.iter().position(|&blocked| blocked == Some(key)).unwrap();
        state.blocked.swap_remove(at);
    }

    /// Invalidates a key, or all keys, in the tier, with steps before and after.
    fn invalidate(&self, key: Option<u64>, steps: usize) -> Result<(), ()> {
        self.state().blocked.push(key);
        self.run(steps / 2);
        match key {
            Some(key) => drop(self.state().tier.remove(&key)),
            None => self.state().tier.clear(),
        }
        self.run(steps - steps / 2);
        let mut state = self.state();
        let at = state.blocked.iter().position(|&blocked| blocked == key).unwrap();
        state.blocked.swap_remove(at);
        Ok(())
    }

    fn take(&self, step: &Step) {
        let cache = self.cache();
        match *step {
            Step::Put(key) => {
                let version = {
                    let mut state = self.state();
                    state.versions += 1;
                    state.history.push(Some(key));
                    let put = (state.versions, state.history.len());
                    state.latest.insert(key, put);
                    state.versions
                };
                cache.insert(key, &version.to_le_bytes()).unwrap();
            }
            Step::Remove(key, steps) => {
                let known = {
                    let mut state = self.state();
                    state.history.push(Some(key));
                    state.latest.remove(&key)
                };
                let found = cache.remove_with(&key, || self.invalidate(Some(key), steps)).unwrap();
                if let Some(pinned) = found {
                    assert_eq!(Some(version(&pinned)), known.map(|(version, _)| version));
                }
            }
            Step::Clear(steps) => {
                {
                    let mut state = self.state();
                    state.history.push(None);
                    state.latest.clear();
                }
                cache.clear_with(|| self.invalidate(None, steps)).unwrap();
            }
            Step::Evict(steps) => {
                // The first call of the sink runs the steps.
                let bytes = cache.bytes();
                NESTED.with(|nested| nested.set(steps));
                cache.evict_to(bytes.saturating_sub(8));
            }
            Step::Get(key) => {
                if let Some(pinned) = cache.get(&key) {
                    let latest = self.state().latest.get(&key).map(|latest| latest.0);
                    assert_eq!(Some(version(&pinned)), latest, "key {key}");
                }
            }
            Step::Lease(key) => self.lease(key),
            Step::Read(at) => {
                let mut state = self.state();
                let State { fetches, tier, .. } = &mut *state;
                if !fetches.is_empty() {
                    let at = at % fetches.len();
                    fetches[at].read = Some(tier.get(&fetches[at].key).copied());
                }
            }
            Step::Commit(at) => self.commit(at),
            Step::GiveUp(at) => {
                let mut state = self.state();
                if !state.fetches.is_empty() {
                    let at = at % state.fetches.len();
                    state.fetches.swap_remove(at);
                }
            }
        }
    }

    fn lease(&self, key: u64) {
        let there = self.cache().contains(&key);
        let leased = self.cache().lease(&key);
        let mut state = self.state();
        let blocked =
            state.blocked.iter().any(|blocked| blocked.is_none_or(|blocked| blocked == key));
        match leased {
            Leased::Present(pinned) => {
                assert!(there);
                assert_eq!(Some(version(&pinned)), state.latest.get(&key).map(|latest| latest.0));
            }
            Leased::Unavailable => {
                assert!(blocked && !there, "key {key} is unavailable without a reason")
            }
            Leased::Lease(lease) => {
                assert!(!blocked && !there, "key {key} is leased");
                let since = state.history.len();
                state.fetches.push(Fetch { key, lease, since, read: None });
            }
        }
    }

    fn commit(&self, at: usize) {
        let fetch = {
            let mut state = self.state();
            if state.fetches.is_empty() {
                return;
            }
            let at = at % state.fetches.len();
            state.fetches.swap_remove(at)
        };
        let Some(Some(found)) = fetch.read else { return };
        let key = fetch.key;
        let (broken, latest) = {
            let state = self.state();
            (state.changed(key, fetch.since), state.latest.get(&key).map(|latest| latest.0))
        };
        assert_eq!(is_valid(self.cache(), &fetch.lease), !broken);
        let mut room = self.cache().reserve(key, 8).unwrap();
        room.bytes_mut().copy_from_slice(&found.to_le_bytes());
        let committed = room.commit_fetched(fetch.lease);
        assert_eq!(committed.is_err(), broken, "key {key}");
        match committed {
            Ok(_) => {
                assert_eq!(Some(found), latest, "key {key}");
                let mut state = self.state();
                state.committed += 1;
                // For other leases it counts as any other insertion.
                state.history.push(Some(key));
            }
            Err(superseded) => {
                let there = superseded.as_ref().map(version);
                assert!(there.is_none() || there == latest, "key {key}");
            }
        }
    }
}

thread_local! {
    /// The number of steps that the next call of the sink runs; later calls run none.
    static NESTED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Runs the steps; returns the numbers of committed fetches and of superseded values.
fn run(shards: usize, steps: Vec<Step>) -> (u64, u64) {
    let pool = pool(256 << 10);
    let world = Arc::new(World { cache: OnceLock::new(), state: Mutex::default() });
    let sink = Arc::downgrade(&world);
    let cache = KvCache::<u64>::builder(&pool)
        .shards(shards)
        .on_evict(move |pinned| {
            let steps = NESTED.with(|nested| nested.replace(0));
            sink.upgrade().expect("it evicts").evicted(&pinned, steps);
        })
        .build()
        .unwrap();
    world.cache.set(cache).unwrap();
    world.state().steps = steps.into();
    world.run(usize::MAX);
    world.cache().check().unwrap();
    let mut state = world.state();
    state.fetches.clear();
    (state.committed, state.superseded)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn a_lookup_returns_the_latest_or_nothing(shards in 1..3_usize, steps in vec(step(), 1..150)) {
        run(shards, steps);
    }
}

#[test]
fn the_steps_commit_and_supersede_values() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut committed, mut superseded) = (0, 0);
    for _ in 0..if cfg!(miri) { 5 } else { 100 } {
        let steps = vec(step(), 150).new_tree(&mut runner).unwrap().current();
        let (more, others) = run(1, steps);
        committed += more;
        superseded += others;
    }
    assert!(committed > 5 && superseded > 5, "{committed} committed, {superseded} superseded");
}

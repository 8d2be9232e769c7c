//! A lower tier in memory, which can be stopped, and made to fail and to panic.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard};

use kvmem::tier::{BoxError, Lookup, StoreOutcome, Tier, TierHit, TierRead, TierValue};

/// The tier.
#[derive(Default)]
pub(super) struct Below {
    state: Mutex<State>,
    changed: Condvar,
}

/// What the tier does with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Mood {
    #[default]
    Works,
    Fails,
    Panics,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) values: HashMap<u64, Vec<u8>>,
    /// Calls that store or read wait while this is set.
    stopped: bool,
    /// Calls that wait.
    pub(super) waiting: usize,
    pub(super) storing: Mood,
    pub(super) removing: Mood,
    pub(super) reading: Mood,
    /// The keys of each call that stored values.
    pub(super) batches: Vec<Vec<u64>>,
    /// The keys of each call that read values.
    pub(super) reads: Vec<Vec<u64>>,
}

fn act(mood: Mood, state: MutexGuard<'_, State>) -> Result<MutexGuard<'_, State>, BoxError> {
    match mood {
        Mood::Works => Ok(state),
        Mood::Fails => Err("the tier fails".into()),
        Mood::Panics => {
            drop(state);
            panic!("the tier panics, as the test requested")
        }
    }
}

impl Below {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Lets calls wait from now on, or go on.
    pub(super) fn stop(&self, stopped: bool) {
        self.state().stopped = stopped;
        self.changed.notify_all();
    }

    /// Waits until `calls` calls wait.
    pub(super) fn wait_for(&self, calls: usize) {
        let state = self.state();
        drop(self.changed.wait_while(state, |state| state.waiting < calls).unwrap());
    }

    fn running(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.waiting += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.stopped).unwrap();
        state.waiting -= 1;
        state
    }
}

/// Returns the key of a cache of numbers.
fn number(key: &[u8]) -> u64 {
    u64::from_le_bytes(key.try_into().unwrap())
}

impl Tier for Below {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let mut state = self.running();
        state.batches.push(values.iter().map(|value| number(value.key)).collect());
        let mut results = Vec::new();
        for value in values {
            let mood = state.storing;
            state = match act(mood, state) {
                Ok(mut state) => {
                    if !value.is_superseded() {
                        state.values.insert(number(value.key), value.bytes.to_vec());
                    }
                    results.push(Ok(StoreOutcome::Stored));
                    state
                }
                Err(error) => {
                    results.push(Err(error));
                    self.state()
                }
            };
        }
        results
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        let state = self.state();
        let len = |value: &Vec<u8>| Lookup::Found(value.len() as u64);
        keys.iter().map(|key| state.values.get(&number(key)).map_or(Lookup::Missing, len)).collect()
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        let mut state = self.running();
        state.reads.push(reads.iter().map(|read| number(read.key)).collect());
        let mood = state.reading;
        let Ok(state) = act(mood, state) else { return vec![None; reads.len()] };
        let fetch = |read: &mut TierRead<'_>| {
            let value = state.values.get(&number(read.key));
            let value = value.filter(|value| value.len() == read.into.len())?;
            read.into.copy_from_slice(value);
            Some(TierHit::default())
        };
        reads.iter_mut().map(fetch).collect()
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        for key in keys {
            let state = self.state();
            let mood = state.removing;
            act(mood, state)?.values.remove(&number(key));
        }
        Ok(())
    }

    fn clear(&self) -> Result<(), BoxError> {
        let state = self.state();
        let mood = state.removing;
        act(mood, state)?.values.clear();
        Ok(())
    }
}

//! A lower tier in memory, which can be stopped, and made to fail and to panic.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard};

use kvmem::cache::{LowerTier, LowerTierError, Pinned, TierRead};

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

fn act(mood: Mood, state: MutexGuard<'_, State>) -> Result<MutexGuard<'_, State>, LowerTierError> {
    match mood {
        Mood::Works => Ok(state),
        Mood::Fails => Err("the tier fails".into()),
        Mood::Panics => {
            drop(state);
            panic!("the tier panics, as the test asked")
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

impl LowerTier<u64> for Below {
    fn put(&self, value: &Pinned<u64>) -> Result<(), LowerTierError> {
        self.put_all(std::slice::from_ref(value)).remove(0)
    }

    fn put_all(&self, values: &[Pinned<u64>]) -> Vec<Result<(), LowerTierError>> {
        let mut state = self.running();
        state.batches.push(values.iter().map(|value| *value.key()).collect());
        let mut results = Vec::new();
        for value in values {
            let mood = state.storing;
            state = match act(mood, state) {
                Ok(mut state) => {
                    if !value.is_superseded() {
                        state.values.insert(*value.key(), value.to_vec());
                    }
                    results.push(Ok(()));
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

    fn lengths(&self, keys: &[&u64]) -> Vec<Option<usize>> {
        let state = self.state();
        keys.iter().map(|key| state.values.get(key).map(Vec::len)).collect()
    }

    fn fetch(&self, reads: &mut [TierRead<'_, u64>]) -> Vec<bool> {
        let mut state = self.running();
        state.reads.push(reads.iter().map(|read| *read.key).collect());
        let mood = state.reading;
        let Ok(state) = act(mood, state) else { return vec![false; reads.len()] };
        let fetch = |read: &mut TierRead<'_, u64>| {
            let value = state.values.get(read.key).filter(|value| value.len() == read.into.len());
            value.is_some_and(|value| {
                read.into.copy_from_slice(value);
                true
            })
        };
        reads.iter_mut().map(fetch).collect()
    }

    fn invalidate(&self, key: &u64) -> Result<(), LowerTierError> {
        let state = self.state();
        let mood = state.removing;
        act(mood, state)?.values.remove(key);
        Ok(())
    }

    fn clear(&self) -> Result<(), LowerTierError> {
        let state = self.state();
        let mood = state.removing;
        act(mood, state)?.values.clear();
        Ok(())
    }
}

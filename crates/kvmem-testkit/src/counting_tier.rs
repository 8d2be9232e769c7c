//! [`CountingTier`]: a tier in memory that records its calls.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvmem::tier::{BoxError, Lookup, StoreOutcome, Tier, TierHints, TierHit, TierRead, TierValue};

/// A tier in memory that records the names of its calls, and returns the hints of its values as it
/// got them.
#[derive(Debug, Default)]
pub struct CountingTier(Mutex<CountingState>);

#[derive(Debug, Default)]
struct CountingState {
    values: HashMap<Vec<u8>, (Vec<u8>, TierHints)>,
    calls: Vec<&'static str>,
}

impl CountingTier {
    fn called(&self, call: &'static str) -> MutexGuard<'_, CountingState> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.calls.push(call);
        state
    }

    /// Returns the calls since the last call of this method, such as `ask+fetch`; a dash if there
    /// were none.
    pub fn take_calls(&self) -> String {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match mem::take(&mut state.calls) {
            calls if calls.is_empty() => "-".to_owned(),
            calls => calls.join("+"),
        }
    }

    /// Returns the hints of the value under a key, if there is one.
    pub fn hints(&self, key: &[u8]) -> Option<TierHints> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.values.get(key).map(|(_, hints)| *hints)
    }
}

impl Tier for CountingTier {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let mut state = self.called("store");
        for value in values {
            state.values.insert(value.key.to_vec(), (value.bytes.to_vec(), value.hints));
        }
        values.iter().map(|_| Ok(StoreOutcome::Stored)).collect()
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        let state = self.called("look_up");
        let len = |(value, _): &(Vec<u8>, TierHints)| Lookup::Found(value.len() as u64);
        keys.iter().map(|key| state.values.get(*key).map_or(Lookup::Missing, len)).collect()
    }

    fn ask(&self, keys: &[&[u8]]) -> Vec<Option<u64>> {
        let state = self.called("ask");
        keys.iter().map(|key| Some(state.values.get(*key)?.0.len() as u64)).collect()
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        let state = self.called("fetch");
        let fetch = |read: &mut TierRead<'_>| {
            let (value, hints) = state.values.get(read.key)?;
            // Another thread may have replaced the value since the caller looked it up.
            (value.len() == read.into.len()).then(|| read.into.copy_from_slice(value))?;
            Some(TierHit { hints: *hints, ..TierHit::default() })
        };
        reads.iter_mut().map(fetch).collect()
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        let mut state = self.called("remove");
        keys.iter().for_each(|key| drop(state.values.remove(*key)));
        Ok(())
    }

    fn clear(&self) -> Result<(), BoxError> {
        self.called("clear").values.clear();
        Ok(())
    }

    fn values(&self) -> u64 {
        self.called("values").values.len() as u64
    }
}

//! [`TimedTier`]: a disk tier whose values end by the simulated clock.
//!
//! The disk tier counts times to live by the clock of the real machine, on which no history may
//! depend. So its values have none, and this tier knows when each ends: by the number with which
//! its bytes begin, across servers and power cuts.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvmem::tier::{
    BoxError, Lookup, StoreOutcome, Tier, TierHints, TierHit, TierRead, TierState, TierValue,
};

use super::environment;

/// When values end, by their numbers.
pub(super) type Ends = Arc<Mutex<HashMap<u64, Duration>>>;

pub(super) struct TimedTier<T> {
    pub(super) tier: T,
    pub(super) ends: Ends,
}

fn number_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("a value begins with its number"))
}

impl<T: Tier> Tier for TimedTier<T> {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let mut ends = self.ends.lock().expect("no thread panics");
        let without_ends = values.iter().map(|value| {
            if let Some(ttl) = value.hints.ttl {
                ends.insert(number_of(value.bytes), environment::time() + ttl);
            }
            value.with_hints(TierHints { ttl: None, ..value.hints })
        });
        let values: Vec<TierValue<'_>> = without_ends.collect();
        self.tier.store(&values)
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        let mut hits = self.tier.fetch(reads);
        let ends = self.ends.lock().expect("no thread panics");
        for (hit, read) in hits.iter_mut().zip(reads) {
            let (Some(found), Some(end)) = (&mut *hit, ends.get(&number_of(read.into))) else {
                continue;
            };
            match end.checked_sub(environment::time()).filter(|left| !left.is_zero()) {
                Some(left) => found.hints.ttl = Some(left),
                None => *hit = None,
            }
        }
        hits
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        self.tier.look_up(keys)
    }

    fn len_of(&self, key: &[u8]) -> Lookup {
        self.tier.len_of(key)
    }

    fn may_have(&self, key: &[u8]) -> bool {
        self.tier.may_have(key)
    }

    fn touch(&self, keys: &[&[u8]]) {
        self.tier.touch(keys);
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        self.tier.remove(keys)
    }

    fn clear(&self) -> Result<(), BoxError> {
        self.tier.clear()
    }

    fn sync(&self) -> Result<(), BoxError> {
        self.tier.sync()
    }

    fn values(&self) -> u64 {
        self.tier.values()
    }

    fn evictions(&self) -> u64 {
        self.tier.evictions()
    }

    fn state(&self) -> TierState {
        self.tier.state()
    }

    fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
        self.tier.keep_open(file)
    }
}

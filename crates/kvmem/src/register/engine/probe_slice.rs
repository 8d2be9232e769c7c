//! *Probe slice*: a range that threads register instead of their chunks, to be timed and then
//! deregistered.

use std::ops::Range;
use std::sync::Arc;

use super::lanes::Lanes;
use super::release::IssuedKeys;
use crate::arena::Region;
use crate::register::{Key, Registrar};

/// A range of a region that is registered once with each of some registrars.
pub(super) struct ProbeSlice {
    region: Arc<Region>,
    range: Range<usize>,
    turns: Lanes<Key>,
}

impl ProbeSlice {
    /// Returns a slice for the first `lanes` registrars.
    ///
    /// # Panics
    /// Panics if the range is not within the region.
    pub(super) fn new(region: &Arc<Region>, range: Range<usize>, lanes: usize) -> ProbeSlice {
        assert!(range.end <= region.len(), "the slice lies in the region");
        let turns = Lanes::new(lanes);
        turns.open(vec![1; lanes]);
        ProbeSlice { region: Arc::clone(region), range, turns }
    }

    /// The work of one thread.
    ///
    /// # Safety
    /// The region's pages are held, and no caller releases them before it has deregistered all keys
    /// that [`take_keys`](ProbeSlice::take_keys) returns after the last thread has finished. If it
    /// cannot, it keeps the region mapped and its pages held for the life of the process.
    pub(super) unsafe fn register(&self, registrars: &[Arc<dyn Registrar>]) {
        while let Some(turn) = self.turns.take() {
            // SAFETY: `new` has checked that the slice lies in the region, which is mapped for
            // reading and writing as long as `self.region` exists. The caller promises that it
            // stays mapped at the same pages until the key is deregistered.
            let key = unsafe {
                registrars[turn.lane]
                    .register(self.region.base().add(self.range.start), self.range.len())
            };
            self.turns.finish(turn, key.ok());
        }
    }

    /// Takes the keys issued so far. No more are issued afterwards.
    pub(super) fn take_keys(&self, registrars: &[Arc<dyn Registrar>]) -> Vec<IssuedKeys> {
        let lanes = self.turns.drain().into_iter().zip(registrars);
        let issued = lanes.map(|(keys, registrar)| IssuedKeys {
            registrar: Arc::clone(registrar),
            keys: keys.into_iter().map(|key| (0, self.range.clone(), key)).collect(),
        });
        issued.collect()
    }
}

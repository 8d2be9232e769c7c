//! [`TierQueue`]: the tier of a node, and the work for it that is under way.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use kvmem::tier::{Tier, TierState};

use super::Waiting;
use super::names::{NamedKey, TierNames};
use super::parents::TierParents;
use super::storing::JOB_VALUES;
use super::touching::LATELY;
use crate::format::{EntryCell, TierRemovals};
use crate::node::events::NO_NAMESPACE;
use crate::node::sessions::NOWHERE;
use crate::node::{EventKind, Node};
use crate::socket::now_ms;
use crate::tier::{TierJob, TierOptions, tier_key};

/// A key that is being fetched.
#[derive(Debug)]
pub(super) struct PendingFetch {
    /// The key was committed or removed meanwhile: what comes is old.
    pub(super) superseded: bool,
    pub(super) waiting: Vec<Waiting>,
}

/// A key that is being looked up.
#[derive(Debug, Default)]
pub(super) struct PendingLookUp {
    /// Calls that want the value fetched.
    pub(super) acquiring: Vec<Waiting>,
    /// Calls that want to know whether there is one.
    pub(super) locating: Vec<Waiting>,
    /// Whether the value is fetched even if no call waits for it.
    pub(super) fetch: bool,
}

/// A value that a look-up has found, and the calls that want it.
pub(super) struct Found {
    pub(super) named: NamedKey,
    pub(super) len: u64,
    pub(super) waiting: Vec<Waiting>,
}

/// The tier, and what is under way.
pub(in crate::node) struct TierQueue {
    pub(super) tier: Arc<dyn Tier>,
    pub(super) options: TierOptions,
    pub(super) jobs: Vec<TierJob>,
    pub(super) fetches: HashMap<NamedKey, PendingFetch>,
    pub(super) look_ups: HashMap<NamedKey, PendingLookUp>,
    /// Lengths of values that only a look-up knows, and until when they are known.
    pub(super) known: HashMap<NamedKey, (u64, u64)>,
    /// Values that look-ups have found and calls want.
    pub(super) found: VecDeque<Found>,
    pub(super) parents: TierParents,
    /// Values that have left the memory and are in the tier. It begins where no value was marked
    /// lately.
    pub(super) leavings: u64,
    /// Blocks of the server's own, for what is fetched.
    pub(in crate::node) fetched_into: HashMap<u32, NamedKey>,
    /// Their bytes.
    pub(super) fetching_bytes: u64,
    /// The bytes of the values that are being stored.
    pub(super) storing_bytes: u64,
    /// Keys that are being removed, how often, and the calls that wait for it.
    pub(super) removals: HashMap<NamedKey, (u32, Vec<Waiting>)>,
    /// The source of values that is the first of the next job.
    pub(super) next_source: usize,
    /// Keys of values in the tier.
    pub(super) names: TierNames,
    /// The evictions of the tier that the log of events has.
    pub(super) evictions: u64,
    /// The tier is being cleared: jobs that it has still to do, the first one first.
    pub(super) clearing: VecDeque<TierClearing>,
    /// It could not remove something since the first of them was begun.
    pub(super) removal_failed: bool,
    /// The commits and jobs after which there was nothing to store.
    pub(super) idle_at: Option<u64>,
    pub(super) changes: u64,
    /// The tier has stored nothing of its last job.
    pub(super) refuses: bool,
}

impl fmt::Debug for TierQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierQueue")
            .field("storing_bytes", &self.storing_bytes)
            .field("fetches", &self.fetches)
            .field("removals", &self.removals)
            .finish_non_exhaustive()
    }
}

/// The removal of all values, or of those of a namespace.
pub(super) struct TierClearing {
    pub(super) namespace: Option<u16>,
    /// What the tier still has to remove after it.
    pub(super) removals: TierRemovals,
}

impl TierQueue {
    /// Returns whether what the tier has of a namespace is about to be removed.
    pub(super) fn is_clearing(&self, namespace: u16) -> bool {
        self.clearing.iter().any(|it| it.namespace.is_none_or(|it| it == namespace))
    }

    /// Returns the length that a look-up has found not long ago.
    fn known_len(&self, named: &NamedKey) -> Option<u64> {
        let (len, until) = self.known.get(named)?;
        (now_ms() < *until).then_some(*len)
    }
}

/// Names of values in the tier that are looked at when it has done a job: more than it evicts for
/// one.
const NAMES_LOOKED_AT: usize = 2 * JOB_VALUES;

impl Node {
    /// Attaches a tier. Values that the index file marks as removed are removed from it
    /// first: single keys, or everything if the keys are not known. Returns whether the tier was
    /// cleared; `None`: the tier cannot do it.
    pub(crate) fn attach_tier(
        &mut self,
        tier: Arc<dyn Tier>,
        options: TierOptions,
    ) -> Option<bool> {
        let pending = std::mem::take(&mut self.to_remove);
        let removals = self.memory.header_cell().tier_removals();
        let done = match removals {
            TierRemovals::None => true,
            TierRemovals::Unknown => tier.forget_unknown().is_ok(),
            TierRemovals::Recovered => {
                let keys: Vec<Vec<u8>> = pending
                    .iter()
                    .map(|(namespace, key)| tier_key(&self.namespaces.get(*namespace).name, key))
                    .collect();
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                tier.remove(&keys).is_ok() && tier.sync().is_ok()
            }
        };
        if !done {
            return None;
        }
        if removals != TierRemovals::None {
            let entries = self.memory.entries()[..self.locals.len()].iter();
            // An entry that a client has pinned still says that its key must be removed.
            let is_done = |entry: &&EntryCell| {
                entry.is_to_remove() || removals == TierRemovals::Unknown && entry.is_clean()
            };
            entries.filter(is_done).for_each(EntryCell::unset_tier);
        }
        self.memory.header_cell().set_tier_removals(TierRemovals::None);
        let evictions = tier.evictions();
        self.tier = Some(TierQueue {
            tier,
            options,
            jobs: Vec::new(),
            fetches: HashMap::new(),
            look_ups: HashMap::new(),
            known: HashMap::new(),
            found: VecDeque::new(),
            parents: TierParents::default(),
            leavings: LATELY,
            fetched_into: HashMap::new(),
            fetching_bytes: 0,
            storing_bytes: 0,
            removals: HashMap::new(),
            next_source: 0,
            names: TierNames::default(),
            evictions,
            clearing: VecDeque::new(),
            removal_failed: false,
            idle_at: None,
            changes: 0,
            refuses: false,
        });
        Some(removals == TierRemovals::Unknown)
    }

    pub(crate) fn has_tier(&self) -> bool {
        self.tier.is_some()
    }

    pub(in crate::node) fn tier_state(&self) -> TierState {
        self.tier.as_ref().map_or(TierState::None, |queue| queue.tier.state())
    }

    /// Returns whether there are jobs that the threads of the tier do not have yet.
    pub(crate) fn has_jobs(&self) -> bool {
        self.tier.as_ref().is_some_and(|queue| !queue.jobs.is_empty())
    }

    /// Returns the jobs for the threads of the tier since the last call.
    pub(crate) fn take_jobs(&mut self) -> Vec<TierJob> {
        self.tier.as_mut().map_or_else(Vec::new, |queue| std::mem::take(&mut queue.jobs))
    }

    /// Returns the namespaces, more than once, whose keys the tier works at.
    pub(in crate::node) fn namespaces_in_tier(&self) -> impl Iterator<Item = u16> + '_ {
        let keys = |it: &'_ TierQueue| {
            let keys = it.fetches.keys().chain(it.removals.keys()).chain(it.fetched_into.values());
            let keys = keys.chain(it.look_ups.keys()).chain(it.found.iter().map(|it| &it.named));
            keys.map(|(namespace, _)| *namespace).collect::<Vec<_>>()
        };
        self.tier.as_ref().map_or_else(Vec::new, keys).into_iter()
    }

    pub(super) fn key_in_tier(&self, namespace: u16, key: &[u8]) -> Vec<u8> {
        tier_key(&self.namespaces.get(namespace).name, key)
    }

    pub(super) fn named_key(&self, slot: u32) -> NamedKey {
        let (entry, word) = (self.entry(slot), self.word(slot));
        (entry.namespace(), entry.key()[..word.key_len.into()].to_vec())
    }

    /// Returns whether the tier has a value under a key that fits into the memory, and an
    /// acquisition would fetch it. Waits for no device.
    pub(in crate::node) fn is_only_in_tier(&self, namespace: u16, key: &[u8]) -> bool {
        if namespace == NOWHERE {
            return false;
        }
        let Some(queue) = &self.tier else { return false };
        let named = (namespace, key.to_vec());
        match queue.fetches.get(&named) {
            Some(fetch) => !fetch.superseded,
            None => {
                let fits = |len| len <= self.memory.header.max_len();
                !queue.removals.contains_key(&named) && self.len_in_tier(&named).is_some_and(fits)
            }
        }
    }

    /// Returns whether the tier has the newest value of a key, so that it is there when memory has
    /// it no more. Waits for no device.
    pub(in crate::node) fn is_in_tier(&self, namespace: u16, key: &[u8]) -> bool {
        match self.find(namespace, key) {
            None => self.is_only_in_tier(namespace, key),
            Some(slot) => {
                let has = |it: &TierQueue| {
                    it.tier.len_of(&self.key_in_tier(namespace, key)).found().is_some()
                };
                self.entry(slot).is_clean() && self.tier.as_ref().is_some_and(has)
            }
        }
    }

    /// Returns the length of a value that the tier has, as far as it is known.
    pub(super) fn len_in_tier(&self, named: &NamedKey) -> Option<u64> {
        // What it has while it is being cleared must not come back.
        let queue = self.tier.as_ref().filter(|it| !it.is_clearing(named.0))?;
        let of_tier = queue.tier.len_of(&self.key_in_tier(named.0, &named.1));
        of_tier.found().or_else(|| queue.known_len(named))
    }

    /// Notes in the log of events that the tier has let values go.
    pub(super) fn note_evictions(&mut self) {
        let Some(queue) = &mut self.tier else { return };
        let evictions = queue.tier.evictions();
        if std::mem::replace(&mut queue.evictions, evictions) != evictions {
            self.events.add(EventKind::TierEvicted, NO_NAMESPACE, &[]);
        }
        let TierQueue { names, tier, .. } = queue;
        let namespaces = &self.namespaces;
        names.look_at(NAMES_LOOKED_AT, |(namespace, key)| {
            tier.len_of(&tier_key(&namespaces.get(*namespace).name, key)).found().is_some()
        });
    }

    /// Returns the number of keys of values in the tier that are known.
    pub(crate) fn tier_names(&self) -> usize {
        self.tier.as_ref().map_or(0, |it| it.names.len())
    }

    /// Takes note of the key of a value in the tier, which an earlier server may have stored.
    pub(crate) fn name_in_tier(&mut self, namespace: u16, key: Vec<u8>) {
        if let Some(queue) = &mut self.tier {
            queue.names.add((namespace, key));
        }
    }

    /// Returns the key at a place among those of the values in the tier.
    pub(in crate::node) fn tier_name(&self, place: usize) -> Option<&NamedKey> {
        self.tier.as_ref()?.names.get(place)
    }

    /// Returns the key at a place among those of the values in the tier, and the length of the
    /// value, if it is of this namespace and in the tier alone.
    pub(in crate::node) fn tier_name_at(
        &self,
        place: usize,
        namespace: u16,
    ) -> Option<(&[u8], u64)> {
        let named = self.tier_name(place).filter(|it| it.0 == namespace)?;
        let is_alone =
            self.find(namespace, &named.1).is_none() && self.is_only_in_tier(namespace, &named.1);
        let len = is_alone.then(|| self.len_in_tier(named)).flatten()?;
        Some((&named.1, len))
    }
}

//! *Below* the node: which values go to its tier, come back from it, and must not come back.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kvmem::tier::{Lookup, Tier, TierHints, TierState};

use super::events::NO_NAMESPACE;
use super::lists::PRIORITIES;
use super::namespaces::Namespace;
use super::node::Node;
use super::sessions::NOWHERE;
use super::tier_names::TierNames;
use super::{EventKind, SessionIndex};
use crate::format::{Committing, EntryCell, State, TierRemovals, put};
use crate::socket::now_ms;
use crate::tier::{Fetching, LookingUp, Removing, Storing, TierDone, TierJob, TierOptions};

/// A call that waits for the tier.
pub(crate) type Waiting = u64;

/// The most bytes of values of one job, and the most values.
const JOB_BYTES: u64 = 16 << 20;
const JOB_VALUES: usize = 64;

/// The most jobs that store at a time.
const STORE_JOBS: u64 = 2;

/// Values that are being stored cannot be evicted, so they are at most this part of the memory.
const PART_STORED: u64 = 8;

/// The most values that are looked at for one job.
const LOOKED_AT: usize = 2048;

/// The most ancestors of one value that are looked at for one job.
const ANCESTORS: usize = 256;

/// The most ancestors of the values of a job, or of a value that leaves the memory, that count as
/// used in the tier.
const MAX_TOUCHED: usize = 2048;

/// A value that was marked as used in the tier is not marked again before this number of values has
/// left the memory.
const LATELY: u64 = 1024;

/// How long a length that a look-up has found is known, in milliseconds, and how many are.
const KNOWN_MS: u64 = 2000;
const MAX_KNOWN: usize = 1 << 16;

/// The most calls that wait for one key. For further ones, the tier has no such key.
const MAX_WAITING: usize = 1024;

/// The most keys that an acquisition fetches that does not wait, and the part of the memory that
/// may be fetched into at a time before such an acquisition fetches no more.
const MAX_PENDING: usize = 256;
/// The most values of one job of such an acquisition.
const AT_ONCE: usize = 16;
const PART_FETCHED: u64 = 4;

/// The most parents of each of the two maps of [`ParentsBelow`].
const MAX_PARENTS: usize = 1 << 19;

/// The parents of values that only the tier has, which does not keep them: hashes of keys. Those
/// that were noted last are known, and of the others half.
#[derive(Default)]
struct ParentsBelow {
    now: HashMap<u64, u64>,
    before: HashMap<u64, u64>,
}

impl ParentsBelow {
    fn note(&mut self, hash: u64, parent: u64) {
        if self.now.len() >= MAX_PARENTS {
            self.before = std::mem::take(&mut self.now);
        }
        self.now.insert(hash, parent);
    }

    fn of(&self, hash: u64) -> Option<u64> {
        self.now.get(&hash).or_else(|| self.before.get(&hash)).copied()
    }
}

/// Names of values in the tier that are looked at when it has done a job: more than it evicts for
/// one.
const NAMES_LOOKED_AT: usize = 2 * JOB_VALUES;

/// A key of a namespace.
pub(super) type NamedKey = (u16, Vec<u8>);

/// A key that is being fetched.
#[derive(Debug)]
struct PendingFetch {
    /// The key was committed or removed meanwhile: what comes is old.
    superseded: bool,
    waiting: Vec<Waiting>,
}

/// A key that is being looked up.
#[derive(Debug, Default)]
struct PendingLookUp {
    /// Calls that want the value fetched.
    acquiring: Vec<Waiting>,
    /// Calls that want to know whether there is one.
    asking: Vec<Waiting>,
    /// Whether the value is fetched even if no call waits for it.
    fetch: bool,
}

/// A value that a look-up has found, and the calls that want it.
struct Found {
    named: NamedKey,
    len: u64,
    waiting: Vec<Waiting>,
}

/// Lets a call wait, if there is one. Returns false if too many wait.
fn add_waiting(list: &mut Vec<Waiting>, waiting: Option<Waiting>) -> bool {
    let may_wait = waiting.is_none() || list.len() < MAX_WAITING;
    list.extend(waiting.filter(|_| may_wait));
    may_wait
}

/// The tier, and what is under way.
pub(super) struct Below {
    tier: Arc<dyn Tier>,
    options: TierOptions,
    jobs: Vec<TierJob>,
    fetches: HashMap<NamedKey, PendingFetch>,
    look_ups: HashMap<NamedKey, PendingLookUp>,
    /// Lengths of values that only a look-up knows, and until when they are known.
    known: HashMap<NamedKey, (u64, u64)>,
    /// Values that look-ups have found and calls want.
    found: VecDeque<Found>,
    parents: ParentsBelow,
    /// Values that have left the memory and are in the tier. It begins where no value was marked
    /// lately.
    leavings: u64,
    /// Blocks of the server's own, for what is fetched.
    pub(super) fetched_into: HashMap<u32, NamedKey>,
    /// Their bytes.
    fetching_bytes: u64,
    /// The bytes of the values that are being stored.
    storing_bytes: u64,
    /// Keys that are being removed, how often, and the calls that wait for it.
    removals: HashMap<NamedKey, (u32, Vec<Waiting>)>,
    /// The source of values whose turn it is to be the first of a job.
    next_source: usize,
    /// Keys of values in the tier.
    names: TierNames,
    /// The evictions of the tier that the log of events has.
    evictions: u64,
    /// The tier is being cleared: its failures by then.
    clearing: Option<u64>,
    /// The commits and jobs after which there was nothing to store.
    idle_at: Option<u64>,
    changes: u64,
}

impl fmt::Debug for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Below")
            .field("storing_bytes", &self.storing_bytes)
            .field("fetches", &self.fetches)
            .field("removals", &self.removals)
            .finish_non_exhaustive()
    }
}

impl Below {
    /// Returns the length that a look-up has found not long ago.
    fn known_len(&self, named: &NamedKey) -> Option<u64> {
        let (len, until) = self.known.get(named)?;
        (now_ms() < *until).then_some(*len)
    }
}

/// Values for a job that stores.
struct StoreJob {
    values: Vec<Storing>,
    bytes: u64,
}

/// Returns the key in the tier: one tier serves all namespaces.
fn tier_key(namespace: &str, key: &[u8]) -> Vec<u8> {
    [&[namespace.len() as u8], namespace.as_bytes(), key].concat()
}

impl Node {
    /// Puts a tier below the node. What the index file says must not come back is removed from it
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
        self.below = Some(Below {
            tier,
            options,
            jobs: Vec::new(),
            fetches: HashMap::new(),
            look_ups: HashMap::new(),
            known: HashMap::new(),
            found: VecDeque::new(),
            parents: ParentsBelow::default(),
            leavings: LATELY + 1,
            fetched_into: HashMap::new(),
            fetching_bytes: 0,
            storing_bytes: 0,
            removals: HashMap::new(),
            next_source: 0,
            names: TierNames::default(),
            evictions,
            clearing: None,
            idle_at: None,
            changes: 0,
        });
        Some(removals == TierRemovals::Unknown)
    }

    /// Notes, while there is no tier, that one would have to remove something.
    pub(super) fn note_removal(&self) {
        if self.below.is_none() {
            self.note_failed_removal();
        }
    }

    /// Notes that the tier has values that must not come back: it is cleared before it is used
    /// again.
    fn note_failed_removal(&self) {
        self.memory.header_cell().set_tier_removals(TierRemovals::Unknown);
    }

    pub(crate) fn has_tier(&self) -> bool {
        self.below.is_some()
    }

    pub(super) fn tier_state(&self) -> TierState {
        self.below.as_ref().map_or(TierState::None, |below| below.tier.state())
    }

    /// Returns the jobs for the threads of the tier since the last call.
    pub(crate) fn take_jobs(&mut self) -> Vec<TierJob> {
        self.below.as_mut().map_or_else(Vec::new, |below| std::mem::take(&mut below.jobs))
    }

    /// Returns the namespaces, more than once, whose keys the tier works at.
    pub(super) fn namespaces_below(&self) -> impl Iterator<Item = u16> + '_ {
        let keys = |it: &'_ Below| {
            let keys = it.fetches.keys().chain(it.removals.keys()).chain(it.fetched_into.values());
            let keys = keys.chain(it.look_ups.keys()).chain(it.found.iter().map(|it| &it.named));
            keys.map(|(namespace, _)| *namespace).collect::<Vec<_>>()
        };
        self.below.as_ref().map_or_else(Vec::new, keys).into_iter()
    }

    fn key_in_tier(&self, namespace: u16, key: &[u8]) -> Vec<u8> {
        tier_key(&self.namespaces.get(namespace).name, key)
    }

    fn named_key(&self, slot: u32) -> NamedKey {
        let (entry, word) = (self.entry(slot), self.word(slot));
        (entry.namespace(), entry.key()[..word.key_len.into()].to_vec())
    }

    /// Stores values that would be evicted next, if the memory is full enough.
    pub(crate) fn store_ahead(&mut self) {
        let Some(below) = &self.below else { return };
        let changes = below.changes + self.counters.committed;
        if !self.may_store() || below.idle_at == Some(changes) {
            return;
        }
        let values = self.next_to_store();
        if values.is_empty() {
            self.below.as_mut().expect("it was just there").idle_at = Some(changes);
        } else {
            self.begin_storing(values);
        }
    }

    /// Returns whether one more job may store values now.
    pub(super) fn may_store(&self) -> bool {
        let most = STORE_JOBS * self.job_bytes();
        self.below.as_ref().is_some_and(|it| it.storing_bytes < most)
    }

    /// Returns whether values are being stored.
    pub(crate) fn is_storing(&self) -> bool {
        self.below.as_ref().is_some_and(|it| it.storing_bytes > 0)
    }

    /// Returns how many values the tier has stored.
    pub(crate) fn stored_below(&self) -> u64 {
        self.counters.tier_stored
    }

    pub(super) fn begin_storing(&mut self, values: Vec<Storing>) {
        let below = self.below.as_mut().expect("there is a tier");
        below.storing_bytes += values.iter().map(|it| it.len).sum::<u64>();
        below.next_source = below.next_source.wrapping_add(1);
        for value in &values {
            self.locals[value.slot as usize].storing = true;
        }
        below.jobs.push(TierJob::Store(values));
    }

    fn job_bytes(&self) -> u64 {
        JOB_BYTES.min(self.memory.header.memory_len / PART_STORED / STORE_JOBS)
    }

    /// Returns whether values will be evictable or free when the tier has done its jobs, or what is
    /// [over](super::ending) is released.
    pub(crate) fn space_will_come(&self) -> bool {
        // A value that is in a list and was no victim is being stored or verified.
        let listed = |it: &Namespace| it.has_candidates(&self.locals);
        let held = || self.namespaces.all().iter().any(listed);
        self.is_ending() || self.below.is_some() && (held() || !self.server_pins.is_empty())
    }

    /// Returns whether a namespace that is over its limit will be below it when the tier has done
    /// its jobs, or what is [over](super::ending) is released.
    pub(crate) fn namespace_space_will_come(&self, session: SessionIndex) -> bool {
        let namespace = self.sessions.get(session).namespace;
        // A value that is in a list and was no victim is being stored or verified.
        let listed = || self.namespaces.get(namespace).has_candidates(&self.locals);
        let removing =
            || self.server_pins.keys().any(|it| self.entry(*it).namespace() == namespace);
        self.is_ending() || self.below.is_some() && (listed() || removing())
    }

    /// Returns values that the tier does not have and that would be evicted next, up to one job.
    ///
    /// Values are evicted for two reasons: the memory is needed, or their namespace is at its own
    /// limit. The values of the first kind come from all namespaces, in the order of
    /// [`Namespaces::eviction_order`](super::namespaces::Namespaces). Each namespace that is close
    /// to its limit is a source of its own. The sources take turns at being the first of a job, so
    /// one that always has values keeps no other waiting.
    fn next_to_store(&self) -> Vec<Storing> {
        let below = self.below.as_ref().expect("there is a tier");
        let ahead_bytes = below.options.ahead_bytes;
        let above = |bytes: u64| (bytes as f64 * below.options.store_above) as u64;
        let metrics = self.space.metrics();
        let (entries, used) = (self.memory.header.entries, self.used_slots());
        let is_full =
            metrics.allocated >= above(metrics.capacity) || used >= above(u64::from(entries));
        let is_limited = |it: &&Namespace| {
            let limit = it.limits.max_bytes;
            limit < metrics.capacity && it.bytes > 0 && it.bytes >= above(limit)
        };
        let limited: Vec<&Namespace> = self.namespaces.all().iter().filter(is_limited).collect();
        let sources = limited.len() + 1;
        let mut job = StoreJob { values: Vec::new(), bytes: 0 };
        for source in 0..sources {
            match (below.next_source + source) % sources {
                0 if is_full => {
                    let (locals, history) = (&self.locals, self.history.as_deref());
                    let space_of = |slot| self.space_of(slot);
                    let order = self.namespaces.eviction_order(locals, history, space_of);
                    self.add_to_job(&mut job, order, ahead_bytes, LOOKED_AT);
                }
                0 => {}
                number => {
                    let namespace = limited[number - 1];
                    let limit = namespace.limits.max_bytes;
                    let ahead = ahead_bytes.min(limit - above(limit).min(limit));
                    let order = namespace.candidates(&self.locals, self.history.as_deref());
                    self.add_to_job(&mut job, order, ahead, (LOOKED_AT / limited.len()).max(8));
                }
            }
            if self.is_full_job(job.bytes, job.values.len()) {
                break;
            }
        }
        job.values
    }

    pub(super) fn is_full_job(&self, bytes: u64, values: usize) -> bool {
        bytes >= self.job_bytes() || values == JOB_VALUES
    }

    /// Returns each value behind its ancestors, except those that came before. They are evicted
    /// later, and the value is dead without them: if only some are stored in time, it is to be
    /// they.
    fn with_ancestors<'a>(
        &'a self,
        order: impl Iterator<Item = u32> + 'a,
    ) -> impl Iterator<Item = Vec<u32>> + 'a {
        let mut seen = HashSet::new();
        order.map(move |slot| {
            let mut chain = vec![slot];
            let mut next = self.parent_of(slot);
            while let Some(parent) = next.filter(|it| chain.len() < ANCESTORS && seen.insert(*it)) {
                chain.push(parent);
                next = self.parent_of(parent);
            }
            chain.reverse();
            chain
        })
    }

    /// Notes the parent of a value that only the tier has from now on.
    pub(super) fn note_parent_below(&mut self, slot: u32) {
        if let Some(parent) = self.parent_of(slot) {
            self.locals[parent as usize].has_below = true;
        }
        let parent = self.entry(slot).parent();
        let (namespace, key) = self.named_key(slot);
        let hash = self.hash_of_key(namespace, &key);
        if let Some(below) = self.below.as_mut().filter(|_| parent != 0) {
            below.parents.note(hash, parent);
        }
    }

    /// Stores a value that is to be evicted, if the tier has evicted its copy since it was stored,
    /// or has descendants of it that are dead without it. Returns whether it does: the value is no
    /// victim then. If too much is being stored already, the value is lost.
    pub(super) fn store_first(&mut self, slot: u32) -> bool {
        let Some(below) = &self.below else { return false };
        let is_wanted = if self.entry(slot).is_clean() {
            let (namespace, key) = self.named_key(slot);
            let key = self.key_in_tier(namespace, &key);
            if below.tier.len_of(&key) != Lookup::Missing {
                self.touch_chain(slot);
                return false;
            }
            self.entry(slot).unset_tier();
            true
        } else {
            self.locals[slot as usize].has_below && self.is_to_store(slot)
        };
        // Beside the values that are stored ahead.
        let below = self.below.as_ref().expect("it was just there");
        let stores = is_wanted && below.storing_bytes < 2 * STORE_JOBS * self.job_bytes();
        if stores {
            self.begin_storing(vec![self.storing(slot)]);
        }
        stores
    }

    /// Marks a value that leaves the memory as used in the tier, then its ancestors, so that the
    /// tier evicts none of them before it. Those that were marked lately stay as they are: the
    /// values of a chain leave the memory one after the other.
    fn touch_chain(&mut self, slot: u32) {
        let below = self.below.as_mut().expect("there is a tier");
        below.leavings += 1;
        let now = below.leavings;
        let mut next = Some(slot);
        for _ in 0..MAX_TOUCHED {
            let is_due = |it: &u32| now - self.locals[*it as usize].touched_at > LATELY;
            let Some(slot) = next.filter(is_due) else { break };
            self.touch_below(slot, now);
            next = self.parent_of(slot);
        }
    }

    fn touch_below(&mut self, slot: u32, now: u64) {
        if self.entry(slot).is_clean() {
            let (namespace, key) = self.named_key(slot);
            let key = self.key_in_tier(namespace, &key);
            self.below.as_ref().expect("there is a tier").tier.touch(&[&key]);
        }
        self.locals[slot as usize].touched_at = now;
    }

    /// Marks the ancestors of stored values as used in the tier, the start of each chain last.
    fn touch_ancestors(&mut self, stored: &[u32]) {
        let now = self.below.as_ref().expect("there is a tier").leavings;
        let (mut seen, mut chains) = (HashSet::new(), Vec::new());
        for slot in stored.iter().filter(|it| self.parent_of(**it).is_some()) {
            // The chain of a value that is an ancestor itself is done.
            let mut next = self.parent_of(*slot).filter(|_| !seen.contains(slot));
            while let Some(parent) = next.filter(|_| chains.len() < MAX_TOUCHED) {
                seen.insert(parent);
                chains.push(parent);
                next = self.parent_of(parent);
            }
        }
        stored.iter().for_each(|slot| self.locals[*slot as usize].touched_at = now);
        chains.into_iter().for_each(|slot| self.touch_below(slot, now));
    }

    /// Adds values to a job until it is full, or `ahead` bytes or `max` values were looked at. The
    /// end of a chain goes first, so a chain is of interest if one of its last `ahead` bytes is not
    /// stored. Then all of it is stored, from its start on.
    fn add_to_job(
        &self,
        job: &mut StoreJob,
        order: impl Iterator<Item = u32>,
        ahead: u64,
        max: usize,
    ) {
        let (mut seen_bytes, mut seen) = (0, 0);
        for chain in self.with_ancestors(order) {
            let before = seen_bytes;
            let mut goes_unstored = false;
            for slot in chain.iter().rev() {
                goes_unstored |= seen_bytes < ahead && self.is_to_store(*slot);
                seen_bytes += self.len_of(*slot);
            }
            if before >= ahead || seen >= max {
                break;
            }
            seen += chain.len();
            for slot in chain.into_iter().filter(|_| goes_unstored) {
                if !self.is_to_store(slot) || job.values.iter().any(|it| it.slot == slot) {
                    continue;
                }
                let value = self.storing(slot);
                job.bytes += value.len;
                job.values.push(value);
                if self.is_full_job(job.bytes, job.values.len()) {
                    return;
                }
            }
        }
    }

    /// Returns whether a value is one that the tier takes and does not have.
    pub(super) fn is_to_store(&self, slot: u32) -> bool {
        let entry = self.entry(slot);
        !entry.is_clean() && !self.locals[slot as usize].storing
    }

    pub(super) fn storing(&self, slot: u32) -> Storing {
        let (namespace, key) = self.named_key(slot);
        let key = self.key_in_tier(namespace, &key);
        let (offset, checksum) = (self.entry(slot).extent().start, self.entry(slot).checksum());
        let entry = self.entry(slot);
        let left = |until: u64| Duration::from_millis(until.saturating_sub(now_ms()));
        let ttl = Some(entry.expires_at()).filter(|it| *it != 0).map(left);
        let priority = entry.priority() as i8;
        let hints = TierHints { priority, ttl, ..TierHints::default() };
        Storing { slot, key, offset, len: self.len_of(slot), checksum, hints }
    }

    /// Returns whether the tier may have a value under the key of an entry that goes, which must
    /// not come back.
    pub(super) fn must_be_removed(&self, slot: u32, kind: EventKind) -> bool {
        let Some(below) = &self.below else { return false };
        if kind == EventKind::Evicted && self.entry(slot).is_clean() {
            return false;
        }
        let (namespace, key) = self.named_key(slot);
        // A value that is evicted is not older than one that only a look-up would find. A tier that
        // is being cleared loses all but what it stores later.
        self.locals[slot as usize].storing
            || below.clearing.is_none() && self.is_known_below(below, kind, namespace, &key)
    }

    fn is_known_below(&self, below: &Below, kind: EventKind, namespace: u16, key: &[u8]) -> bool {
        match below.tier.len_of(&self.key_in_tier(namespace, key)) {
            Lookup::Found(_) => true,
            Lookup::Missing => false,
            Lookup::Unknown => kind != EventKind::Evicted,
        }
    }

    /// Removes the value of an entry from the tier. The entry is detached, and stays until then.
    pub(super) fn remove_below(&mut self, slot: u32) {
        let (namespace, key) = self.named_key(slot);
        self.begin_server_pin(slot);
        self.entry(slot).set_to_remove();
        self.entry(slot).detach(self.word(slot));
        self.push_removal(Some(slot), namespace, key);
    }

    fn push_removal(&mut self, slot: Option<u32>, namespace: u16, key: Vec<u8>) {
        let tier_key = self.key_in_tier(namespace, &key);
        self.forget_below(namespace, &key);
        let below = self.below.as_mut().expect("there is a tier");
        below.changes += 1;
        below.known.remove(&(namespace, key.clone()));
        below.names.remove(&(namespace, key.clone()));
        below.removals.entry((namespace, key.clone())).or_default().0 += 1;
        let removing = Removing { slot, namespace, key, tier_key };
        match below.jobs.last_mut() {
            Some(TierJob::Remove(values)) => values.push(removing),
            _ => below.jobs.push(TierJob::Remove(vec![removing])),
        }
    }

    /// Says that what is being fetched under a key is old.
    pub(super) fn supersede(&mut self, namespace: u16, key: &[u8]) {
        let Some(below) = self.below.as_mut().filter(|it| !it.fetches.is_empty()) else { return };
        if let Some(fetch) = below.fetches.get_mut(&(namespace, key.to_vec())) {
            fetch.superseded = true;
        }
    }

    /// Removes from the tier the values of keys that memory does not have. Returns how many there
    /// are; `waiting` [ends](Self::tier_done) for each key of `keys` that is being removed.
    pub(crate) fn remove_only_below(
        &mut self,
        session: SessionIndex,
        keys: &[&[u8]],
        waiting: Option<Waiting>,
    ) -> (usize, usize) {
        let namespace = self.sessions.get(session).namespace;
        let (mut removed, mut waits) = (0, 0);
        for key in keys {
            self.supersede(namespace, key);
            let Some(below) = &self.below else { continue };
            let named = (namespace, key.to_vec());
            let under_way = below.removals.contains_key(&named);
            let known = below.tier.len_of(&self.key_in_tier(namespace, key));
            let there = known.len().is_some();
            // A value that only a look-up would find is removed without being counted.
            if known != Lookup::Missing && !under_way {
                self.push_removal(None, namespace, key.to_vec());
                removed += usize::from(there);
            }
            if there && !under_way {
                self.events.add(EventKind::Removed, namespace, key);
            }
            let below = self.below.as_mut().expect("it was just there");
            let removal = below.removals.get_mut(&named);
            waits += usize::from(removal.is_some_and(|(_, list)| add_waiting(list, waiting)));
        }
        (removed, waits)
    }

    /// Returns whether the tier has a value under a key that fits into the memory, and an
    /// acquisition would fetch it. Waits for no device.
    pub(super) fn is_below(&self, namespace: u16, key: &[u8]) -> bool {
        let Some(below) = &self.below else { return false };
        let named = (namespace, key.to_vec());
        match below.fetches.get(&named) {
            Some(fetch) => !fetch.superseded,
            None => {
                let fits = |len| len <= self.memory.header.max_len();
                !below.removals.contains_key(&named) && self.len_below(&named).is_some_and(fits)
            }
        }
    }

    /// Returns whether the tier has the newest value of a key, so that it is there when memory has
    /// it no more. Waits for no device.
    pub(super) fn is_in_tier(&self, namespace: u16, key: &[u8]) -> bool {
        match self.find(namespace, key) {
            None => self.is_below(namespace, key),
            Some(slot) => {
                let has =
                    |it: &Below| it.tier.len_of(&self.key_in_tier(namespace, key)).len().is_some();
                self.entry(slot).is_clean() && self.below.as_ref().is_some_and(has)
            }
        }
    }

    /// Notes in the log of events that the tier has let values go.
    fn note_evictions(&mut self) {
        let Some(below) = &mut self.below else { return };
        let evictions = below.tier.evictions();
        if std::mem::replace(&mut below.evictions, evictions) != evictions {
            self.events.add(EventKind::TierEvicted, NO_NAMESPACE, &[]);
        }
        let Below { names, tier, .. } = below;
        let namespaces = &self.namespaces;
        names.look_at(NAMES_LOOKED_AT, |(namespace, key)| {
            tier.len_of(&tier_key(&namespaces.get(*namespace).name, key)).len().is_some()
        });
    }

    /// Returns the number of keys of values in the tier that are known.
    pub(super) fn names_below(&self) -> usize {
        self.below.as_ref().map_or(0, |it| it.names.len())
    }

    /// Returns the key at a place among those of the values in the tier, and the length of the
    /// value, if it is of this namespace and in the tier alone.
    pub(super) fn name_below(&self, place: usize, namespace: u16) -> Option<(&[u8], u64)> {
        let named = self.below.as_ref()?.names.get(place).filter(|it| it.0 == namespace)?;
        let is_alone =
            self.find(namespace, &named.1).is_none() && self.is_below(namespace, &named.1);
        let len = is_alone.then(|| self.len_below(named)).flatten()?;
        Some((&named.1, len))
    }

    /// Begins to fetch the keys, from position `from` on, that only the tier has. `waiting`
    /// [ends](Self::tier_done) for each of them. Returns their positions, and the position to go on
    /// from if they need more than `evictions_left`. If no call waits, they are limited: the next
    /// call goes on.
    pub(crate) fn fetch_below(
        &mut self,
        session: SessionIndex,
        keys: &[&[u8]],
        prefix_only: bool,
        waiting: Option<Waiting>,
        from: usize,
    ) -> (Vec<u16>, Option<usize>) {
        let namespace = self.sessions.get(session).namespace;
        if namespace == NOWHERE {
            return (Vec::new(), None);
        }
        let mut goes_on = None;
        let max_bytes = self.memory.header.memory_len / PART_FETCHED;
        let (mut begun, mut unknown, mut waits) = (Vec::new(), Vec::new(), Vec::new());
        for (index, key) in keys.iter().enumerate().skip(from) {
            if self.find(namespace, key).is_some() {
                continue;
            }
            // The tier keeps no parents. The key before it in a prefix is one, unless the node
            // knows better.
            let before = index.checked_sub(1).filter(|_| prefix_only).map(|it| keys[it]);
            let parent = before.map_or(0, |before| self.hash_of_key(namespace, before));
            let Some(below) = &mut self.below else { break };
            if waiting.is_none() && waits.len() == MAX_PENDING {
                break;
            }
            let is_full = below.fetching_bytes >= max_bytes;
            let position = index as u16;
            let named = (namespace, key.to_vec());
            if let Some(fetch) = below.fetches.get_mut(&named).filter(|it| !it.superseded) {
                if add_waiting(&mut fetch.waiting, waiting) {
                    waits.push(position);
                } else if prefix_only {
                    break;
                }
                continue;
            }
            if waiting.is_none() && is_full {
                // What others fetch has taken the room: the next call begins.
                if waits.is_empty() && self.is_below(namespace, key) {
                    waits.push(position);
                }
                break;
            }
            let free = !below.fetches.contains_key(&named) && !below.removals.contains_key(&named);
            match free.then(|| self.len_below(&named)).flatten() {
                Some(len) => {
                    match self.begin_fetch(&named, len, parent, waiting.into_iter().collect()) {
                        Ok(fetching) => {
                            begun.push(fetching);
                            waits.push(position);
                        }
                        Err(_) if waiting.is_some() && self.evictions_left == 0 => {
                            goes_on = Some(index);
                            break;
                        }
                        // Values are stored before they are evicted: the next call begins.
                        Err(_)
                            if waiting.is_none()
                                && waits.is_empty()
                                && (self.evictions_left == 0 || self.space_will_come()) =>
                        {
                            waits.push(position);
                            break;
                        }
                        Err(_) if prefix_only => break,
                        Err(_) => {}
                    }
                }
                None if free
                    && self.begin_look_up(
                        &named,
                        &mut unknown,
                        |it| &mut it.acquiring,
                        waiting,
                    ) =>
                {
                    waits.push(position);
                }
                None if prefix_only => break,
                None => {}
            }
        }
        // The start of a prefix is of use before its end has come, if no call waits for all of it.
        let at_once = if waiting.is_none() { AT_ONCE } else { usize::MAX };
        while !begun.is_empty() {
            let rest = begun.split_off(begun.len().min(at_once));
            let mut values = std::mem::replace(&mut begun, rest);
            // The tier evicts the start of a prefix after its end.
            values.reverse();
            self.push_fetches(values);
        }
        self.push_look_ups(unknown);
        (waits, goes_on)
    }

    /// Begins to look up the keys of which neither memory nor the tier knows whether there is a
    /// value. `waiting` [ends](Self::tier_done) for each of them. Returns how many they are.
    pub(crate) fn look_up_below(
        &mut self,
        session: SessionIndex,
        keys: &[&[u8]],
        waiting: Waiting,
    ) -> usize {
        let namespace = self.sessions.get(session).namespace;
        let (mut unknown, mut waits) = (Vec::new(), 0);
        if namespace == NOWHERE || self.below.as_ref().is_none_or(|it| it.tier.knows_all()) {
            return 0;
        }
        for key in keys {
            if self.find(namespace, key).is_some() || self.is_below(namespace, key) {
                continue;
            }
            let named = (namespace, key.to_vec());
            if self.below.as_ref().is_some_and(|it| it.removals.contains_key(&named))
                || !self.begin_look_up(&named, &mut unknown, |it| &mut it.asking, Some(waiting))
            {
                break;
            }
            waits += 1;
        }
        self.push_look_ups(unknown);
        waits
    }

    /// Lets a call wait for the look-up of a key, which is added to `unknown` if it is not under
    /// way. Returns false if the tier knows all its values or is being cleared, or too many calls
    /// wait.
    fn begin_look_up(
        &mut self,
        named: &NamedKey,
        unknown: &mut Vec<LookingUp>,
        list: impl Fn(&mut PendingLookUp) -> &mut Vec<Waiting>,
        waiting: Option<Waiting>,
    ) -> bool {
        let tier_key = self.key_in_tier(named.0, &named.1);
        let may_ask =
            |it: &&mut Below| it.clearing.is_none() && it.tier.len_of(&tier_key) == Lookup::Unknown;
        let Some(below) = self.below.as_mut().filter(may_ask) else { return false };
        let is_new = !below.look_ups.contains_key(named);
        let look_up = below.look_ups.entry(named.clone()).or_default();
        look_up.fetch |= waiting.is_none();
        if !add_waiting(list(look_up), waiting) {
            return false;
        }
        if is_new {
            unknown.push(LookingUp { namespace: named.0, key: named.1.clone(), tier_key });
        }
        true
    }

    fn push_look_ups(&mut self, keys: Vec<LookingUp>) {
        if let Some(below) = self.below.as_mut().filter(|_| !keys.is_empty()) {
            below.jobs.push(TierJob::LookUp(keys));
        }
    }

    fn push_fetches(&mut self, values: Vec<Fetching>) {
        let Some(below) = &mut self.below else { return };
        let (far, near): (Vec<Fetching>, Vec<Fetching>) =
            values.into_iter().partition(|it| below.tier.len_of(&it.key).len().is_none());
        for (values, job) in
            [(near, TierJob::Fetch as fn(_) -> _), (far, TierJob::FetchFar as fn(_) -> _)]
        {
            if !values.is_empty() {
                below.jobs.push(job(values));
            }
        }
    }

    /// Returns the length of a value that the tier has, as far as it is known.
    fn len_below(&self, named: &NamedKey) -> Option<u64> {
        // What it has while it is being cleared must not come back.
        let below = self.below.as_ref().filter(|it| it.clearing.is_none())?;
        let of_tier = below.tier.len_of(&self.key_in_tier(named.0, &named.1));
        of_tier.len().or_else(|| below.known_len(named))
    }

    /// Reserves a block for a value that the tier has. Fails with the calls that would wait if
    /// there is no space.
    fn begin_fetch(
        &mut self,
        named: &NamedKey,
        len: u64,
        parent: u64,
        waiting: Vec<Waiting>,
    ) -> Result<Fetching, Vec<Waiting>> {
        let (namespace, key) = (named.0, self.key_in_tier(named.0, &named.1));
        let Ok(slot) = self.reserve_block(None, namespace, len) else { return Err(waiting) };
        let hash = self.hash_of_key(named.0, &named.1);
        let below = self.below.as_mut().expect("there is a tier");
        let parent = below.parents.of(hash).unwrap_or(parent);
        below.known.remove(named);
        below.fetched_into.insert(slot, named.clone());
        below.fetching_bytes += len;
        below.fetches.insert(named.clone(), PendingFetch { superseded: false, waiting });
        Ok(Fetching { slot, key, offset: self.entry(slot).extent().start, len, parent })
    }

    /// Takes the length that a look-up has found. Returns the calls that wait no longer: those that
    /// want the value wait until it is [fetched](Self::fetch_found).
    fn looked_up(&mut self, value: LookingUp, len: Option<u64>) -> Vec<Waiting> {
        let named = (value.namespace, value.key);
        let below = self.below.as_mut().expect("there is a tier");
        let Some(look_up) = below.look_ups.remove(&named) else { return Vec::new() };
        let PendingLookUp { acquiring, mut asking, fetch } = look_up;
        let free = !below.fetches.contains_key(&named) && !below.removals.contains_key(&named);
        if let Some(len) = len.filter(|_| free && below.clearing.is_none()) {
            if below.known.len() >= MAX_KNOWN {
                below.known.clear();
            }
            below.known.insert(named.clone(), (len, now_ms() + KNOWN_MS));
            if fetch || !acquiring.is_empty() {
                below.found.push_back(Found { named, len, waiting: acquiring });
                return asking;
            }
        }
        asking.extend(acquiring);
        asking
    }

    /// Returns whether values that look-ups have found are still to be fetched.
    pub(crate) fn has_found(&self) -> bool {
        self.below.as_ref().is_some_and(|it| !it.found.is_empty())
    }

    /// Begins to fetch values that look-ups have found, as far as `evictions_left` allow. Returns
    /// the calls that wait no longer for one of them, because it is there or does not come.
    pub(crate) fn fetch_found(&mut self) -> Vec<Waiting> {
        let (mut begun, mut ended) = (Vec::new(), Vec::new());
        while let Some(found) = self.below.as_mut().and_then(|it| it.found.pop_front()) {
            let Found { named, len, waiting } = found;
            let below = self.below.as_mut().expect("it was just there");
            if let Some(fetch) = below.fetches.get_mut(&named).filter(|it| !it.superseded) {
                fetch.waiting.extend(waiting);
                continue;
            }
            let busy = below.fetches.contains_key(&named) || below.removals.contains_key(&named);
            if busy || below.clearing.is_some() || self.find(named.0, &named.1).is_some() {
                ended.extend(waiting);
                continue;
            }
            match self.begin_fetch(&named, len, 0, waiting) {
                Ok(fetching) => begun.push(fetching),
                Err(waiting) if self.evictions_left == 0 => {
                    let below = self.below.as_mut().expect("it was just there");
                    below.found.push_front(Found { named, len, waiting });
                    break;
                }
                Err(waiting) => ended.extend(waiting),
            }
        }
        self.push_fetches(begun);
        ended
    }

    /// Takes what a thread of the tier has done. Returns the calls that waited for it, once for
    /// each key.
    pub(crate) fn tier_done(&mut self, done: TierDone, now: u64) -> Vec<Waiting> {
        let ended = self.job_done(done, now);
        self.note_evictions();
        ended
    }

    fn job_done(&mut self, done: TierDone, now: u64) -> Vec<Waiting> {
        match done {
            TierDone::Stored(values) => {
                for (value, stored) in &values {
                    self.value_stored(value, *stored);
                }
                let stored = values.iter().filter(|(_, stored)| *stored);
                self.touch_ancestors(&stored.map(|(value, _)| value.slot).collect::<Vec<_>>());
                Vec::new()
            }
            TierDone::Fetched(values) => {
                let fetched = values.into_iter();
                fetched.flat_map(|(value, hit)| self.value_fetched(&value, hit, now)).collect()
            }
            TierDone::LookedUp(values) => {
                let values = values.into_iter();
                values.flat_map(|(value, len)| self.looked_up(value, len)).collect()
            }
            TierDone::Cleared(cleared) => {
                self.cleared(cleared);
                Vec::new()
            }
            TierDone::Removed(values, removed) => {
                values.into_iter().flat_map(|value| self.value_removed(value, removed)).collect()
            }
        }
    }

    fn value_stored(&mut self, value: &Storing, stored: bool) {
        let below = self.below.as_mut().expect("there is a tier");
        below.storing_bytes -= value.len;
        // A value that the tier does not take is not offered again and again.
        below.changes += u64::from(stored);
        if stored {
            self.counters.tier_stored += 1;
            if self.word(value.slot).state == State::Committed {
                self.entry(value.slot).set_clean();
                let named = self.named_key(value.slot);
                self.below.as_mut().expect("there is a tier").names.add(named);
            }
        }
        let local = &mut self.locals[value.slot as usize];
        (local.storing, local.store_failed) = (false, !stored);
    }

    fn value_fetched(
        &mut self,
        value: &Fetching,
        fetched: Option<(u32, TierHints)>,
        now: u64,
    ) -> Vec<Waiting> {
        let below = self.below.as_mut().expect("there is a tier");
        let named = below.fetched_into[&value.slot].clone();
        below.fetching_bytes -= value.len;
        let fetch = below.fetches.remove(&named).expect("it was begun");
        let (namespace, key) = (named.0, &named.1);
        let slot = value.slot;
        let current = !fetch.superseded && self.find(namespace, key).is_none();
        let failed = fetched.is_none();
        match fetched.filter(|_| current) {
            Some((checksum, hints)) => {
                let batch = self.next_batch();
                let until = |ttl: Duration| now.saturating_add(ttl.as_millis() as u64).max(1);
                let expires_at = hints.ttl.map_or(0, until);
                let priority = hints.priority.clamp(0, PRIORITIES as i8 - 1) as u8;
                let checksum = Some(checksum);
                let parent = value.parent;
                let what =
                    Committing { key, namespace, priority, checksum, batch, expires_at, parent };
                self.set_order(slot);
                let entry = self.entry(slot);
                entry.set_used_at(now);
                entry.prepare(entry.generation(), &what);
                entry.set_clean();
                entry.commit(self.word(slot));
                let below = self.below.as_mut().expect("there is a tier");
                below.fetched_into.remove(&slot);
                below.names.add(named.clone());
                self.chains.begin_linking(1);
                self.enter(slot, |_| false);
                self.events.add(EventKind::Stored, namespace, key);
                self.counters.tier_fetched += 1;
            }
            None => {
                self.release_extent(slot);
                self.below.as_mut().expect("there is a tier").fetched_into.remove(&slot);
                self.counters.tier_failed += u64::from(failed);
            }
        }
        fetch.waiting
    }

    fn value_removed(&mut self, value: Removing, removed: bool) -> Vec<Waiting> {
        if !removed {
            self.counters.tier_failed += 1;
            // Before the entry is free, which names the key.
            self.note_failed_removal();
        }
        if let Some(slot) = value.slot {
            self.end_server_pin(slot);
        }
        let below = self.below.as_mut().expect("there is a tier");
        let named = (value.namespace, value.key);
        let (count, _) = below.removals.get_mut(&named).expect("it was begun");
        *count -= 1;
        if *count > 0 || !removed {
            // If the tier could not remove it, the key is never fetched again.
            return if removed {
                Vec::new()
            } else {
                below.removals.get_mut(&named).map_or_else(Vec::new, |it| std::mem::take(&mut it.1))
            };
        }
        below.removals.remove(&named).map_or_else(Vec::new, |(_, waiting)| waiting)
    }

    /// Takes the number of the next batch.
    pub(super) fn next_batch(&mut self) -> u64 {
        let header = self.memory.header_cell();
        let batch = header.next_batch.load(std::sync::atomic::Ordering::Relaxed);
        put(&header.next_batch, batch + 1);
        batch
    }

    /// Begins to remove everything from the tier, if there is one. Nothing that it has comes back
    /// from now on.
    pub(crate) fn clear_below(&mut self) {
        self.forget_all_below();
        let failed = self.counters.tier_failed;
        if self.below.is_some() {
            // If the server ends before the tier is cleared, the next one clears it.
            self.note_failed_removal();
        }
        let Some(below) = &mut self.below else { return };
        below.fetches.values_mut().for_each(|fetch| fetch.superseded = true);
        below.known.clear();
        below.names.clear();
        below.clearing = Some(failed);
        below.jobs.push(TierJob::Clear);
    }

    /// Returns whether the tier is being cleared.
    pub(crate) fn is_clearing_below(&self) -> bool {
        self.below.as_ref().is_some_and(|it| it.clearing.is_some())
    }

    fn cleared(&mut self, cleared: bool) {
        let below = self.below.as_mut().expect("there is a tier");
        let failed_before = below.clearing.take();
        self.counters.tier_failed += u64::from(!cleared);
        if Some(self.counters.tier_failed) == failed_before {
            // Nothing that it still has must be removed.
            self.memory.header_cell().set_tier_removals(TierRemovals::None);
        }
        self.events.add(EventKind::TierEvicted, NO_NAMESPACE, &[]);
    }
}

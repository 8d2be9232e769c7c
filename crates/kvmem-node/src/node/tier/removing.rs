//! *Removing*: what must not come back from the tier.

use kvmem::tier::Lookup;

use super::Waiting;
use super::fetching::add_waiting;
use super::names::NamedKey;
use super::queue::{TierClearing, TierQueue};
use crate::format::TierRemovals;
use crate::node::events::NO_NAMESPACE;
use crate::node::{EventKind, Node, SessionIndex};
use crate::tier::{Removing, TierJob};

impl Node {
    /// Notes, while there is no tier, that one would have to remove something.
    pub(in crate::node) fn note_removal(&self) {
        if self.tier.is_none() {
            self.note_failed_removal();
        }
    }

    /// Notes that the tier has values that must not come back: it is cleared before it is used
    /// again.
    fn note_failed_removal(&self) {
        self.memory.header_cell().set_tier_removals(TierRemovals::Unknown);
    }

    fn removal_failed(&mut self) {
        self.counters.tier_failed += 1;
        self.note_failed_removal();
        self.tier.as_mut().expect("there is a tier").removal_failed = true;
    }

    /// Returns whether the tier may have a value under the key of an entry that goes, which must
    /// not come back.
    pub(in crate::node) fn must_be_removed(&self, slot: u32, kind: EventKind) -> bool {
        let Some(queue) = &self.tier else { return false };
        if kind == EventKind::Evicted && self.entry(slot).is_clean() {
            return false;
        }
        let (namespace, key) = self.named_key(slot);
        // A value that is evicted is not older than one that only a look-up would find. A tier that
        // is being cleared removes all but what it stores later. One that failed to store the value
        // may not find the older one, and the next server would.
        let local = &self.locals[slot as usize];
        let may_have = || local.hides_older || self.is_known_in_tier(queue, kind, namespace, &key);
        local.storing || !queue.is_clearing(namespace) && may_have()
    }

    fn is_known_in_tier(
        &self,
        queue: &TierQueue,
        kind: EventKind,
        namespace: u16,
        key: &[u8],
    ) -> bool {
        let key = self.key_in_tier(namespace, key);
        match queue.tier.len_of(&key) {
            Lookup::Found(_) => true,
            Lookup::Missing => queue.tier.may_have(&key),
            Lookup::Unknown => kind != EventKind::Evicted,
        }
    }

    /// Removes the value of an entry from the tier. The entry is detached, and stays until then.
    pub(in crate::node) fn remove_from_tier(&mut self, slot: u32) {
        let (namespace, key) = self.named_key(slot);
        self.begin_server_pin(slot);
        self.entry(slot).set_to_remove();
        self.entry(slot).detach(self.word(slot));
        self.push_removal(Some(slot), namespace, key);
    }

    fn push_removal(&mut self, slot: Option<u32>, namespace: u16, key: Vec<u8>) {
        let tier_key = self.key_in_tier(namespace, &key);
        self.forget_in_tier(namespace, &key);
        let queue = self.tier.as_mut().expect("there is a tier");
        queue.changes += 1;
        queue.known.remove(&(namespace, key.clone()));
        queue.names.remove(&(namespace, key.clone()));
        queue.removals.entry((namespace, key.clone())).or_default().0 += 1;
        let removing = Removing { slot, namespace, key, tier_key };
        match queue.jobs.last_mut() {
            Some(TierJob::Remove(values)) => values.push(removing),
            _ => queue.jobs.push(TierJob::Remove(vec![removing])),
        }
    }

    /// Says that what is being fetched under a key is old.
    pub(in crate::node) fn supersede(&mut self, namespace: u16, key: &[u8]) {
        let Some(queue) = self.tier.as_mut().filter(|it| !it.fetches.is_empty()) else { return };
        if let Some(fetch) = queue.fetches.get_mut(&(namespace, key.to_vec())) {
            fetch.superseded = true;
        }
    }

    /// Removes from the tier the values of keys that memory does not have. Returns how many there
    /// are; `waiting` [ends](Self::tier_done) for each key of `keys` that is being removed.
    pub(crate) fn remove_only_in_tier(
        &mut self,
        session: SessionIndex,
        keys: &[&[u8]],
        waiting: Option<Waiting>,
    ) -> (usize, usize) {
        let namespace = self.sessions.get(session).namespace;
        let (mut removed, mut waits) = (0, 0);
        for key in keys {
            self.supersede(namespace, key);
            let Some(queue) = &self.tier else { continue };
            let named = (namespace, key.to_vec());
            let jobs = queue.removals.get(&named).map(|(jobs, _)| *jobs);
            let (under_way, has_failed) = (jobs.is_some_and(|jobs| jobs > 0), jobs == Some(0));
            let tier_key = self.key_in_tier(namespace, key);
            let there = queue.tier.len_of(&tier_key).found().is_some();
            // A value that only a look-up would find, or that is not found now, is removed without
            // being counted. A removal that has failed is made again.
            if (has_failed || queue.tier.may_have(&tier_key)) && !under_way {
                self.push_removal(None, namespace, key.to_vec());
                removed += usize::from(there);
            }
            if there && !under_way {
                self.events.add(EventKind::Removed, namespace, key);
            }
            let queue = self.tier.as_mut().expect("it was just there");
            let removal = queue.removals.get_mut(&named);
            waits += usize::from(removal.is_some_and(|(_, list)| add_waiting(list, waiting)));
        }
        (removed, waits)
    }

    pub(super) fn value_removed(&mut self, value: Removing, removed: bool) -> Vec<Waiting> {
        if !removed {
            // Before the entry is free, which names the key.
            self.removal_failed();
        }
        if let Some(slot) = value.slot {
            self.end_server_pin(slot);
        }
        let queue = self.tier.as_mut().expect("there is a tier");
        let named = (value.namespace, value.key);
        let (count, _) = queue.removals.get_mut(&named).expect("it was begun");
        *count -= 1;
        if *count > 0 || !removed {
            // If the tier could not remove it, the key is never fetched again.
            return if removed {
                Vec::new()
            } else {
                queue.removals.get_mut(&named).map_or_else(Vec::new, |it| std::mem::take(&mut it.1))
            };
        }
        queue.removals.remove(&named).map_or_else(Vec::new, |(_, waiting)| waiting)
    }

    /// Returns whether the tier can remove the values of one namespace.
    pub(crate) fn tier_forgets_namespaces(&self) -> bool {
        self.tier.as_ref().is_some_and(|it| it.tier.forgets_namespaces())
    }

    /// Begins to remove all values of a namespace, or of all, from the tier, if there is one. None
    /// of them comes back from now on.
    pub(crate) fn clear_tier(&mut self, namespace: Option<u16>) {
        if namespace.is_none() {
            self.forget_all_in_tier();
        }
        let removals = self.memory.header_cell().tier_removals();
        if self.tier.is_some() {
            // If the server ends before the tier is cleared, the next one clears it.
            self.note_failed_removal();
        }
        let name = namespace.map(|number| self.namespaces.get(number).name.clone());
        let Some(queue) = &mut self.tier else { return };
        queue.removal_failed &= !queue.clearing.is_empty();
        let removals = queue.clearing.back().map_or(removals, |before| before.removals);
        let removals = namespace.map_or(TierRemovals::None, |_| removals);
        let is_of = |named: &NamedKey| namespace.is_none_or(|it| it == named.0);
        let fetches = queue.fetches.iter_mut().filter(|(named, _)| is_of(named));
        fetches.for_each(|(_, fetch)| fetch.superseded = true);
        queue.known.retain(|named, _| !is_of(named));
        queue.names.retain(|named| !is_of(named));
        queue.clearing.push_back(TierClearing { namespace, removals });
        queue.jobs.push(TierJob::Clear(name));
    }

    /// Returns whether the tier is being cleared.
    pub(crate) fn is_clearing_tier(&self) -> bool {
        self.tier.as_ref().is_some_and(|it| !it.clearing.is_empty())
    }

    pub(in crate::node) fn cleared(&mut self, cleared: bool) {
        let queue = self.tier.as_mut().expect("there is a tier");
        let begun = queue.clearing.pop_front().expect("it was begun");
        if !cleared {
            self.removal_failed();
        }
        let is_done = |it: &TierQueue| it.clearing.is_empty() && !it.removal_failed;
        if self.tier.as_ref().is_some_and(is_done) {
            // Nothing else that it still has must be removed.
            self.memory.header_cell().set_tier_removals(begun.removals);
        }
        self.events.add(EventKind::TierEvicted, NO_NAMESPACE, &[]);
    }
}

//! *Chains*: the values of a prefix, each of which names the one before it, its *parent*.
//!
//! A prefix is worth something as a whole: a value whose parent is gone is found by nobody. So the
//! ends of chains go before their starts:
//!
//! - A value with children in memory is no candidate for eviction. A child that is pinned does not
//!   hold its parent: otherwise a client with one pin would hold a whole chain. It is evicted later
//!   than all that the client does not use.
//! - The use of a value is one of all its ancestors. A value that leaves the memory, or is pinned,
//!   passes its place in the order of use to its parent, if that is the higher one. The parent
//!   passes it on when it goes itself. So each use and each eviction changes one value and its
//!   parent, however long the chain is.
//!
//! # Siblings
//!
//! The children of one parent are *siblings*. What they share is known by the hash of the parent's
//! namespace and key, whether or not the parent is in memory: how many they are, their bytes, and
//! the parent's entry. Parents and children therefore come and go in any order, in O(1). The hash
//! has a secret key, which the index file contains, as each entry contains it with the hash of its
//! parent (0: it has none).
//!
//! # No cycles
//!
//! Two values that name each other as parents would hold each other forever. The last value of a
//! cycle that comes finds a child that waits for it and a parent in memory. Only such a value looks
//! for itself among its ancestors. All values of a call together look at [`MAX_STEPS`] of them. A
//! value that is its own ancestor, or does not know, counts as one without a parent while the
//! server runs.
//!
//! # Dead bytes
//!
//! A value whose parent is neither in memory nor in the tier is *dead*. The tier says whether it
//! has a parent when the parent leaves the memory, or when the first child comes without it. It
//! does not report what it evicts later.

use hashbrown::HashTable;

use super::node::Node;
use crate::format::State;

/// No entry, and no siblings.
pub(super) const NONE: u32 = u32::MAX;

/// The most ancestors among which the values of a call look for themselves.
const MAX_STEPS: usize = 1 << 16;

/// Values with one parent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Siblings {
    /// The hash of the parent's namespace and key.
    pub(super) parent: u64,
    /// The parent's entry; [`NONE`]: it is not in memory.
    pub(super) parent_slot: u32,
    /// The tier has the parent, as far as the node knows.
    pub(super) in_tier: bool,
    /// How many they are, and how many of them nobody has pinned: these hold the parent.
    pub(super) count: u32,
    pub(super) holding: u32,
    /// The bytes of all of them.
    pub(super) bytes: u64,
}

impl Siblings {
    fn dead_bytes(&self) -> u64 {
        if self.parent_slot == NONE && !self.in_tier { self.bytes } else { 0 }
    }
}

/// All siblings, by their parents.
#[derive(Debug, Default)]
pub(super) struct Chains {
    by_parent: HashTable<u32>,
    all: Vec<Siblings>,
    free: Vec<u32>,
    dead_bytes: u64,
    /// Ancestors that the call may still look at.
    steps_left: usize,
}

impl Chains {
    /// Returns the bytes of values whose parent is neither in memory nor in the tier.
    pub(super) fn dead_bytes(&self) -> u64 {
        self.dead_bytes
    }

    /// Begins a call that links `count` values.
    pub(super) fn begin_linking(&mut self, count: usize) {
        self.steps_left = MAX_STEPS.max(16 * count);
    }

    pub(super) fn get(&self, siblings: u32) -> &Siblings {
        &self.all[siblings as usize]
    }

    /// Returns the siblings of all parents.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &Siblings)> {
        self.by_parent.iter().map(|index| (*index, self.get(*index)))
    }

    fn find(&self, parent: u64) -> Option<u32> {
        self.by_parent.find(parent, |it| self.get(*it).parent == parent).copied()
    }

    /// Changes siblings, and the dead bytes with them.
    fn change(&mut self, siblings: u32, change: impl FnOnce(&mut Siblings)) -> Siblings {
        let it = &mut self.all[siblings as usize];
        self.dead_bytes -= it.dead_bytes();
        change(it);
        self.dead_bytes += it.dead_bytes();
        *it
    }

    fn add(&mut self, siblings: Siblings) -> u32 {
        let index = self.free.pop().unwrap_or(self.all.len() as u32);
        match self.all.get_mut(index as usize) {
            Some(free) => *free = siblings,
            None => self.all.push(siblings),
        }
        let all = &self.all;
        let hash_of = |it: &u32| all[*it as usize].parent;
        self.by_parent.insert_unique(siblings.parent, index, hash_of);
        index
    }

    fn remove(&mut self, siblings: u32) {
        let parent = self.get(siblings).parent;
        if let Ok(found) = self.by_parent.find_entry(parent, |it| *it == siblings) {
            found.remove();
            self.free.push(siblings);
        }
    }
}

impl Node {
    /// Links a value that can be found from now on with its parent and its children. `hash` is that
    /// of its own key; `is_only_in_tier` says whether the tier has its parent.
    pub(super) fn link(
        &mut self,
        slot: u32,
        hash: u64,
        is_only_in_tier: impl FnOnce(&Node) -> bool,
    ) {
        if let Some(children) = self.chains.find(hash) {
            let found = self.chains.change(children, |it| it.parent_slot = slot);
            let local = &mut self.locals[slot as usize];
            (local.children, local.holding) = (children, found.holding);
        }
        let parent = self.entry(slot).parent();
        if parent == 0 || parent == hash {
            return;
        }
        let siblings = match self.chains.find(parent) {
            Some(found) if self.closes_cycle(slot, found) => return,
            Some(found) => found,
            None => {
                let parent_slot = self.find_hash(parent).unwrap_or(NONE);
                if parent_slot != NONE && self.closes_cycle_above(slot, parent_slot) {
                    return;
                }
                let in_tier = parent_slot == NONE && is_only_in_tier(self);
                let siblings =
                    Siblings { parent, parent_slot, in_tier, count: 0, holding: 0, bytes: 0 };
                let added = self.chains.add(siblings);
                if parent_slot != NONE {
                    self.locals[parent_slot as usize].children = added;
                }
                added
            }
        };
        let len = self.len_of(slot);
        self.chains.change(siblings, |it| (it.count, it.bytes) = (it.count + 1, it.bytes + len));
        self.locals[slot as usize].siblings = siblings;
        if self.locals[slot as usize].pins == 0 {
            self.hold_parent(slot);
        }
    }

    /// Gives the links of a value to another entry, to which it moves and whose [`Local`] has them.
    pub(super) fn relink(&mut self, from: u32, to: u32) {
        let children = self.locals[from as usize].children;
        if children != NONE {
            self.chains.change(children, |it| it.parent_slot = to);
        }
        let local = &mut self.locals[from as usize];
        (local.children, local.siblings, local.holding) = (NONE, NONE, 0);
        local.queued = false;
    }

    /// Unlinks a value that can no longer be found. `in_tier` says whether the tier has it.
    pub(super) fn unlink(&mut self, slot: u32, in_tier: bool) {
        let local = &mut self.locals[slot as usize];
        local.queued = false;
        let (children, siblings) = (local.children, local.siblings);
        let pinned = local.pins > 0;
        if children != NONE {
            (local.children, local.holding) = (NONE, 0);
            self.chains.change(children, |it| (it.parent_slot, it.in_tier) = (NONE, in_tier));
        }
        if siblings == NONE {
            return;
        }
        if !pinned {
            self.release_parent(slot);
        }
        self.locals[slot as usize].siblings = NONE;
        let len = self.len_of(slot);
        let left = self
            .chains
            .change(siblings, |it| (it.count, it.bytes) = (it.count - 1, it.bytes - len));
        if left.count == 0 {
            if left.parent_slot != NONE {
                self.locals[left.parent_slot as usize].children = NONE;
            }
            self.chains.remove(siblings);
        }
    }

    /// Lets a value that nobody has pinned hold its parent.
    pub(super) fn hold_parent(&mut self, slot: u32) {
        let siblings = self.locals[slot as usize].siblings;
        if siblings == NONE {
            return;
        }
        let found = self.chains.change(siblings, |it| it.holding += 1);
        if found.parent_slot != NONE {
            self.locals[found.parent_slot as usize].holding += 1;
        }
    }

    /// Ends the hold of a value on its parent, which becomes a candidate with the last one.
    pub(super) fn release_parent(&mut self, slot: u32) {
        let siblings = self.locals[slot as usize].siblings;
        if siblings == NONE {
            return;
        }
        let found = self.chains.change(siblings, |it| it.holding -= 1);
        if found.parent_slot != NONE {
            self.locals[found.parent_slot as usize].holding -= 1;
            self.raise_parent(slot);
        }
    }

    /// Passes the place of a value in the order of use to its parent, if that has a lower one.
    pub(super) fn raise_parent(&mut self, slot: u32) {
        let Some(parent) = self.parent_of(slot) else { return };
        let order = self.locals[slot as usize].order;
        if self.locals[parent as usize].order < order {
            self.entry(parent).set_order(order);
            let local = &mut self.locals[parent as usize];
            // The record of its own place is stale.
            (local.order, local.queued) = (order, false);
            if local.has_moved {
                let namespace = self.entry(parent).namespace();
                self.namespaces.at(namespace).remove_record(order, parent);
            }
        }
        self.queue(parent);
    }

    /// Adds the record of a value that is a candidate and has none.
    pub(super) fn queue(&mut self, slot: u32) {
        let local = &self.locals[slot as usize];
        if local.is_candidate() && !local.queued {
            self.add_to_list(slot);
        }
    }

    /// Returns the entry of the parent of a value, if it is in memory.
    pub(super) fn parent_of(&self, slot: u32) -> Option<u32> {
        let siblings = self.locals[slot as usize].siblings;
        if siblings == NONE {
            return None;
        }
        Some(self.chains.get(siblings).parent_slot).filter(|parent| *parent != NONE)
    }

    /// Returns whether a value would be among its own ancestors if it were one of these siblings.
    fn closes_cycle(&mut self, slot: u32, siblings: u32) -> bool {
        let parent = self.chains.get(siblings).parent_slot;
        parent != NONE && self.closes_cycle_above(slot, parent)
    }

    /// Returns whether a value is among an entry and its ancestors, or these are too many to
    /// search. A value without children has no descendants, and is not.
    fn closes_cycle_above(&mut self, slot: u32, parent: u32) -> bool {
        let mut next = Some(parent).filter(|_| self.locals[slot as usize].children != NONE);
        while let Some(ancestor) = next {
            if ancestor == slot || self.chains.steps_left == 0 {
                return true;
            }
            self.chains.steps_left -= 1;
            next = self.parent_of(ancestor);
        }
        false
    }

    /// Notes that the tier has removed the value of a key, or of all keys.
    pub(super) fn forget_in_tier(&mut self, namespace: u16, key: &[u8]) {
        if let Some(children) = self.chains.find(self.hash_of_key(namespace, key)) {
            self.chains.change(children, |it| it.in_tier = false);
        }
    }

    /// Notes that the tier has removed everything.
    pub(super) fn forget_all_in_tier(&mut self) {
        let all: Vec<u32> = self.chains.all().map(|(index, _)| index).collect();
        for siblings in all {
            self.chains.change(siblings, |it| it.in_tier = false);
        }
    }

    /// Checks the seventh invariant of a node.
    pub(super) fn check_chains(&self) -> Result<(), String> {
        let mut dead = 0;
        let mut linked = 0;
        for slot in 0..self.locals.len() as u32 {
            let local = &self.locals[slot as usize];
            let committed = self.word(slot).state == State::Committed;
            if !committed && (local.siblings, local.children, local.queued) != (NONE, NONE, false) {
                return Err(format!("7: entry {slot} is linked, and has no value"));
            }
            if committed && local.order != self.entry(slot).order() {
                return Err(format!("7: entry {slot} has another place in the index file"));
            }
            let holding = match local.children {
                NONE => 0,
                children if self.chains.get(children).parent_slot != slot => {
                    return Err(format!("7: entry {slot} has the children of another one"));
                }
                children => self.chains.get(children).holding,
            };
            if local.holding != holding {
                return Err(format!(
                    "7: {} children hold entry {slot}, not {holding}",
                    local.holding
                ));
            }
            linked += u32::from(local.siblings != NONE);
            let ancestors = std::iter::successors(self.parent_of(slot), |it| self.parent_of(*it));
            if ancestors.take(self.locals.len()).any(|it| it == slot) {
                return Err(format!("7: entry {slot} is its own ancestor"));
            }
        }
        let mut counted = 0;
        let mut all_sums = vec![(0, 0, 0); self.chains.all.len()];
        for (slot, local) in (0..).zip(&self.locals).filter(|(_, it)| it.siblings != NONE) {
            let (count, holding, bytes) = &mut all_sums[local.siblings as usize];
            *count += 1;
            *holding += u32::from(local.pins == 0);
            *bytes += self.len_of(slot);
        }
        for (index, it) in self.chains.all() {
            let sums = all_sums[index as usize];
            if sums != (it.count, it.holding, it.bytes) || it.count == 0 {
                return Err(format!("7: siblings {index} are {sums:?}, counted are {it:?}"));
            }
            let parent = self.find_hash(it.parent).unwrap_or(NONE);
            if parent != it.parent_slot {
                return Err(format!("7: siblings {index} have parent {parent}, not {it:?}"));
            }
            counted += it.count;
            dead += it.dead_bytes();
        }
        if (counted, dead) != (linked, self.chains.dead_bytes) {
            let had = self.chains.dead_bytes;
            return Err(format!(
                "7: {linked} entries have siblings, {counted} are counted; {dead} bytes are dead, \
                 {had} are counted"
            ));
        }
        Ok(())
    }
}

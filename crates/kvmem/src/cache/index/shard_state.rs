//! *Shard state*: the index of a shard, its policy and its leases, under the shard's lock.
//!
//! Invariants, which `check` verifies here and `KvCache::check` over all shards: (1) the block at
//! slot *s* is found under the hash that the policy has for it, and is the only one with that slot;
//! (2) every slot is either in use by one block or free; (3) no two blocks have one key; (4) what
//! the usage has charged is what the shards hold and what is being written; (5) the leases of a
//! hash have one entry, and at least one holder.

use std::borrow::Borrow;
use std::mem;
use std::sync::{Arc, Weak};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::charged::Charged;
use super::entry::{CacheEntry, is_pinned};
use super::leases::Leases;
use super::usage::Usage;
use crate::cache::policy::{ActivePolicy, First};
use crate::cache::{EvictionPolicy, Slot};
use crate::offset::CheckError;
use crate::sync::{Mutex, prefetch, thread_number};

/// Evictions whose cache misses overlap.
const EVICTED_TOGETHER: u32 = 8;
/// A scan-resistant shard compares its victim with those of other shards at least once in this many
/// evictions: the worths that it compares with otherwise are those of an earlier moment.
const COMPARED_EVERY: u32 = 32;

/// Values in flight to a lower tier are weak references: their bytes are freed with the pin.
pub(super) type ShardLeases<K> = Leases<Weak<CacheEntry<K>>>;

/// No slot: the limit of blocks excludes it.
const NO_SLOT: Slot = Slot::MAX;

/// The state that the lock guards. What each eviction and each insertion writes comes first, behind
/// the lock: these lines come from the processor of the thread that had the lock before.
#[repr(C)]
pub(in crate::cache) struct ShardState<K> {
    /// Blocks by the hash of the key. One pointer per block: the index of 100,000 blocks takes
    /// 1 MB.
    pub(super) index: HashTable<Arc<CacheEntry<K>>>,
    /// Counts insertions, removals and attempts to evict, by two; uses between two of these count
    /// once.
    pub(super) changes: u32,
    /// All uses count: no block is ever marked as recorded.
    pub(super) exact: bool,
    /// The slot that was freed last, which the next block gets; [`NO_SLOT`] if that has one.
    spare: Slot,
    /// Counts attempts to evict.
    evictions: u32,
    /// The number of attempts before the last comparison with other shards.
    compared: u32,
    /// Evictions that the shard may still make without a look at other shards.
    allowed: u32,
    /// The number of the thread that evicted last.
    evictor: u32,
    /// Commits since the shard last advanced the clock.
    pub(super) uncounted: u32,
    /// Threads that change the state reach it without locking. The lock exists because look-ups
    /// share the state, and a policy need not be `Sync`.
    pub(super) policy: Mutex<ActivePolicy>,
    /// Number of slots in use and free.
    slots: Slot,
    /// Slots that are free besides the spare one.
    free: Vec<Slot>,
    /// Leases, and the values in flight to a lower tier.
    pub(in crate::cache) leases: ShardLeases<K>,
}

impl<K> ShardState<K> {
    pub(super) fn new(policy: ActivePolicy, exact: bool) -> Self {
        // Starts at 1: a fresh block has the number 0, so its first use is recorded.
        let changes = 1;
        let policy = Mutex::new(policy);
        let leases = Leases::default();
        ShardState {
            index: HashTable::new(),
            changes,
            exact,
            spare: NO_SLOT,
            evictions: 0,
            compared: 0,
            allowed: 0,
            evictor: 0,
            uncounted: 0,
            policy,
            slots: 0,
            free: Vec::new(),
            leases,
        }
    }

    /// Starts to fetch what the next evictions read: the entries of the next victims before each
    /// first of [`EVICTED_TOGETHER`], and the bytes of the next one for a thread that also evicted
    /// the last. Other threads would fetch them from this processor's cache.
    #[inline]
    fn prefetch_victims(&mut self) {
        let policy = self.policy.get_mut();
        let this = thread_number() as u32;
        if mem::replace(&mut self.evictor, this) == this
            && let [_, Some(slot)] = policy.upcoming()
            && let Some(hash) = policy.hash_of(slot)
            && let Some(held) = self.index.find(hash, |held| held.slot() == slot)
        {
            held.prefetch_bytes();
        }
        if self.evictions % EVICTED_TOGETHER == 1 {
            let slots = policy.upcoming::<{ 2 + EVICTED_TOGETHER as usize }>();
            let hashes = slots.map(|slot| {
                let hash = policy.hash_of(slot?)?;
                policy.prefetch(slot?, hash);
                Some(hash)
            });
            hashes.into_iter().skip(2).flatten().for_each(|hash| self.prefetch(hash));
        }
    }

    /// Starts to fetch what a look-up of this hash reads, and what an eviction of the block reads.
    /// The loads of the index that this takes do not depend on each other's results, so the
    /// processor overlaps those of several calls with one another and with what follows.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        let _ = self.index.find(hash, |held| {
            let entry = Arc::as_ptr(held);
            // The counts are before the entry, and its last numbers may be on another line.
            prefetch(entry.wrapping_byte_sub(1));
            prefetch(entry.wrapping_add(1).wrapping_byte_sub(1));
            false
        });
    }

    /// Counts a change: from now on the first use of each block is recorded again. The number stays
    /// odd, for blocks with a time to live; see `entry.rs`.
    fn changed(&mut self) {
        self.changes = self.changes.wrapping_add(2);
    }
}

impl<K: Eq> ShardState<K> {
    #[inline]
    pub(in crate::cache) fn find<Q: Eq + ?Sized>(
        &self,
        hash: u64,
        key: &Q,
    ) -> Option<&Arc<CacheEntry<K>>>
    where
        K: Borrow<Q>,
    {
        self.index.find(hash, |held| held.key.borrow() == key)
    }

    /// Returns the block under `key`, which counts as used.
    pub(in crate::cache) fn used<Q: Eq + ?Sized>(
        &mut self,
        hash: u64,
        key: &Q,
    ) -> Option<Arc<CacheEntry<K>>>
    where
        K: Borrow<Q>,
    {
        let held = self.index.find(hash, |held| held.key.borrow() == key)?;
        if self.exact || !held.is_noted(self.changes) {
            self.policy.get_mut().touch(held.slot());
            held.noted(self.changes);
        }
        Some(Arc::clone(held))
    }

    /// Breaks the leases of the key and marks the values in flight under it, for an insertion or a
    /// removal.
    #[inline]
    fn supersede<Q: Eq + ?Sized>(&mut self, hash: u64, key: &Q)
    where
        K: Borrow<Q>,
    {
        if !self.leases.is_quiet() {
            self.leases.supersede(hash, |in_flight| {
                if let Some(held) = in_flight.upgrade().filter(|held| held.key.borrow() == key) {
                    held.supersede();
                }
            });
        }
    }

    /// Records that a block that was just evicted is in flight to the sink. Returns its number.
    pub(in crate::cache) fn hand_over(&mut self, held: &Arc<CacheEntry<K>>) -> u64 {
        // The block's slot is free, and keeps the hash until the next block takes the slot.
        let hash = self.policy.get_mut().hash_of(held.slot()).expect("a block was at the slot");
        self.leases.hand_over(hash, Arc::downgrade(held))
    }

    /// Ends a lease. Returns `Ok` if the lease was valid: the caller may insert its value.
    /// Otherwise returns the value that the key has, if any. If `Eq` panics, the lease has not
    /// ended.
    pub(in crate::cache) fn redeem(
        &mut self,
        hash: u64,
        key: &K,
        number: u64,
    ) -> Result<(), Option<Arc<CacheEntry<K>>>> {
        let there = self.find(hash, key).cloned();
        let live = self.leases.is_live(hash, number);
        self.leases.give_up(hash, number);
        // Another key with the same hash may own the lease while this key has a value.
        if live && there.is_none() { Ok(()) } else { Err(there) }
    }

    /// Inserts a block. Returns its slot, and the block that it replaces under the same key, if
    /// any. The caller [informs](Self::inform_placed) the policy.
    pub(in crate::cache) fn place<'a>(
        &mut self,
        hash: u64,
        charged: Charged<'a, K>,
        usage: &'a Usage,
    ) -> (Slot, Option<Charged<'a, K>>) {
        self.changed();
        self.supersede(hash, &charged.held().key);
        let ShardState { index, policy, slots, free, spare, .. } = self;
        let policy = policy.get_mut();
        let is_same = |old: &Arc<CacheEntry<K>>| old.key == charged.held().key;
        // The policy knows all blocks that are there.
        let hash_of = |held: &Arc<CacheEntry<K>>| policy.hash_of(held.slot()).unwrap_or(0);
        let entry = index.entry(hash, is_same, hash_of);
        // From here on none of the caller's code runs.
        match entry {
            Entry::Occupied(mut old) => {
                let slot = old.get().slot();
                charged.held().stands_at(slot);
                let old = mem::replace(old.get_mut(), charged.place());
                old.supersede();
                (slot, Some(Charged::taken(old, usage)))
            }
            Entry::Vacant(vacant) => {
                let spare = Some(mem::replace(spare, NO_SLOT)).filter(|&slot| slot != NO_SLOT);
                let slot = spare.or_else(|| free.pop()).unwrap_or_else(|| {
                    *slots += 1;
                    *slots - 1
                });
                charged.held().stands_at(slot);
                vacant.insert(charged.place());
                (slot, None)
            }
        }
    }

    /// Informs the policy that a block was inserted at a slot, or replaced the one there.
    pub(in crate::cache) fn inform_placed(
        &mut self,
        slot: Slot,
        hash: u64,
        depth: u32,
        replaced: bool,
    ) {
        let policy = self.policy.get_mut();
        if replaced {
            policy.touch(slot);
        } else {
            policy.insert_at_depth(slot, hash, depth);
        }
    }

    /// Informs the policy that the block at a slot was removed otherwise than by
    /// [`evict`](Self::evict).
    pub(in crate::cache) fn inform_removed(&mut self, slot: Slot) {
        self.policy.get_mut().remove(slot);
    }

    /// Removes the block under `key`. The caller [informs](Self::inform_removed) the policy.
    pub(in crate::cache) fn remove<'a, Q: Eq + ?Sized>(
        &mut self,
        hash: u64,
        key: &Q,
        usage: &'a Usage,
    ) -> Option<(Slot, Charged<'a, K>)>
    where
        K: Borrow<Q>,
    {
        self.supersede(hash, key);
        let entry = self.index.find_entry(hash, |held| held.key.borrow() == key).ok()?;
        let held = entry.remove().0;
        let slot = self.vacate(&held);
        held.supersede();
        Some((slot, Charged::taken(held, usage)))
    }

    /// Removes the block under `key` if it is not pinned. The caller
    /// [informs](Self::inform_removed) the policy.
    pub(in crate::cache) fn remove_unpinned<'a>(
        &mut self,
        hash: u64,
        key: &K,
        usage: &'a Usage,
    ) -> Option<(Slot, Charged<'a, K>)> {
        let entry =
            self.index.find_entry(hash, |held| held.key == *key && !is_pinned(held)).ok()?;
        let held = entry.remove().0;
        Some((self.vacate(&held), Charged::taken(held, usage)))
    }

    /// Removes a block, pinned or not, if it is still in the index. The caller
    /// [informs](Self::inform_removed) the policy.
    pub(in crate::cache) fn remove_entry<'a>(
        &mut self,
        hash: u64,
        held: &Arc<CacheEntry<K>>,
        usage: &'a Usage,
    ) -> Option<(Slot, Charged<'a, K>)> {
        let entry = self.index.find_entry(hash, |other| Arc::ptr_eq(other, held)).ok()?;
        let held = entry.remove().0;
        Some((self.vacate(&held), Charged::taken(held, usage)))
    }

    /// Frees the slot of a block that has left the index.
    fn vacate(&mut self, held: &CacheEntry<K>) -> Slot {
        self.changed();
        let slot = held.slot();
        self.free_slot(slot);
        slot
    }

    fn free_slot(&mut self, slot: Slot) {
        let before = mem::replace(&mut self.spare, slot);
        if before != NO_SLOT {
            self.free.push(before);
        }
    }

    /// Removes the policy's next victim, which is not pinned. Returns `None` if all blocks are
    /// pinned. `other` is the worth of LRU's candidate among all shards.
    pub(in crate::cache) fn evict<'a>(
        &mut self,
        other: Option<f32>,
        usage: &'a Usage,
    ) -> Option<Charged<'a, K>> {
        self.changed();
        self.evictions = self.evictions.wrapping_add(1);
        self.prefetch_victims();
        self.policy.get_mut().set_other(other);
        let ShardState { index, policy, .. } = self;
        // The bucket of a slot whose block may be evicted.
        let bucket_of = |slot: Slot, hash: u64| {
            let bucket =
                index.find_bucket_index(hash, |held| held.slot() == slot && !is_pinned(held))?;
            index.get_bucket(bucket)?.prefetch_bytes();
            Some(bucket)
        };
        let mut shown = None;
        let mut may_go = |slot: Slot, hash: u64| {
            shown = bucket_of(slot, hash).map(|bucket| (slot, bucket));
            shown.is_some()
        };
        let slot = policy.get_mut().next_victim(&mut may_go)?;
        // A policy may return a slot that it was not shown last.
        let bucket = match shown {
            Some((last, bucket)) if last == slot => bucket,
            _ => bucket_of(slot, policy.get_mut().hash_of(slot)?)?,
        };
        let held = index.get_bucket_entry(bucket).ok()?.remove().0;
        self.free_slot(slot);
        Some(Charged::taken(held, usage))
    }

    /// Removes all blocks. The caller [informs](Self::inform_removed) the policy of each slot.
    pub(in crate::cache) fn drain<'a>(
        &mut self,
        usage: &'a Usage,
    ) -> (Vec<Slot>, Vec<Charged<'a, K>>) {
        self.changed();
        self.leases.supersede_all(|in_flight| {
            if let Some(held) = in_flight.upgrade() {
                held.supersede();
            }
        });
        let all: Vec<_> = self.index.drain().map(|held| Charged::taken(held, usage)).collect();
        let slots: Vec<Slot> = all.iter().map(|charged| charged.held().slot()).collect();
        self.free.extend(&slots);
        all.iter().for_each(|charged| charged.held().supersede());
        (slots, all)
    }

    /// Returns whether the next eviction should compare shards whatever their victims are.
    #[inline]
    pub(in crate::cache) fn must_compare(&self) -> bool {
        self.evictions.wrapping_sub(self.compared) >= COMPARED_EVERY
    }

    /// Records that the next victim was compared with those of other shards.
    #[inline]
    pub(in crate::cache) fn set_compared(&mut self) {
        (self.compared, self.allowed) = (self.evictions, 0);
    }

    /// Lets the shard make this many further evictions like the next one without a look at other
    /// shards.
    #[inline]
    pub(in crate::cache) fn allow(&mut self, evictions: u32) {
        self.allowed = evictions;
    }

    /// Returns whether evictions are [allowed](Self::allow).
    #[inline]
    pub(in crate::cache) fn is_allowed(&self) -> bool {
        self.allowed > 0
    }

    /// Begins an allowed eviction, whose victim is of the same order as the last one. Returns false
    /// if none is allowed.
    #[inline]
    pub(in crate::cache) fn begin_allowed(&mut self) -> bool {
        let is_allowed = self.is_allowed();
        if is_allowed {
            self.allowed -= 1;
            self.policy.get_mut().repeat_choice();
        }
        is_allowed
    }

    /// Sets the next victim, which the caller has chosen of the first blocks of all orders here.
    #[inline]
    pub(in crate::cache) fn set_choice(&mut self, choice: First) {
        self.policy.get_mut().set_choice(choice);
    }

    pub(in crate::cache) fn len(&self) -> usize {
        self.index.len()
    }

    /// Verifies the invariants at the head of this file. Returns the bytes of all blocks.
    /// O(blocks).
    pub(in crate::cache) fn check(&self) -> Result<u64, CheckError> {
        let wrong = |invariant, what| Err(CheckError { invariant, what });
        let mut taken = vec![false; self.slots as usize];
        for held in &self.index {
            let slot = held.slot();
            let Some(taken) = taken.get_mut(slot as usize) else {
                return wrong(1, format!("a block stands at slot {slot} of {}", self.slots));
            };
            let hash = self.policy.lock().hash_of(slot).unwrap_or(0);
            let same = |other: &Arc<CacheEntry<K>>| Arc::ptr_eq(other, held);
            if mem::replace(taken, true) || self.index.find(hash, same).is_none() {
                return wrong(1, format!("slot {slot} has two blocks, or the hash of neither"));
            }
            if self.index.iter_hash(hash).filter(|other| other.key == held.key).count() != 1 {
                return wrong(3, format!("the key at slot {slot} is there twice"));
            }
        }
        for &slot in self.free.iter().chain((self.spare != NO_SLOT).then_some(&self.spare)) {
            match taken.get_mut(slot as usize) {
                Some(taken) if !*taken => *taken = true,
                _ => return wrong(2, format!("slot {slot} is free and in use, or free twice")),
            }
        }
        match taken.iter().position(|&taken| !taken) {
            Some(slot) => wrong(2, format!("slot {slot} is neither free nor in use")),
            None => match self.leases.defect() {
                Some(defect) => wrong(5, defect),
                None => Ok(self.index.iter().map(|held| held.charge()).sum()),
            },
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::cache::Eviction;
    use crate::cache::index::CacheLimits;
    use crate::cache::policy::Across;

    #[test]
    fn a_shard_compares_its_victims_now_and_then_and_evicts_alone_as_often_as_it_may() {
        let usage = Usage::new(CacheLimits { bytes: 1, blocks: 1 });
        let mut state = ShardState::<u64>::new(Eviction::Lru.make(&Across::Age), false);
        let attempt = |state: &mut ShardState<u64>| assert!(state.evict(None, &usage).is_none());
        for _ in 0..2 {
            for attempts in 0..COMPARED_EVERY {
                assert!(!state.must_compare(), "after {attempts} attempts");
                attempt(&mut state);
            }
            assert!(state.must_compare());
            attempt(&mut state);
            assert!(state.must_compare());
            state.set_compared();
        }
        assert!(!state.is_allowed() && !state.begin_allowed());
        state.allow(2);
        assert!(state.is_allowed() && state.begin_allowed());
        assert!(state.is_allowed() && state.begin_allowed());
        assert!(!state.is_allowed() && !state.begin_allowed());
        state.allow(3);
        state.set_compared();
        assert!(!state.is_allowed(), "a comparison ends the run");
    }
}

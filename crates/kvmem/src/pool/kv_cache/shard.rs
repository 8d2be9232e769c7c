//! *Shard*: an index, a policy, and a lock around both.
//!
//! Look-ups are many, and a cache line that each of them wrote would be all that threads pass to
//! and fro. So they share the books, by a [striped](crate::sync::Striped) lock, and what they write
//! lies at the *desk* of their stripe: figures, and notes of what was used. Whoever changes the
//! books has all stripes, and first tells the policy what the notes say. So the policy knows of
//! every use before it is asked for anything, and its own tables, which one thread after the other
//! writes, are written by look-ups only when the notes are full.
//!
//! A block that is used again and again, while no block comes or goes, need not be noted again:
//! nothing is asked of the policy meanwhile. So each block says after how many changes of the shard
//! it was noted, and uses between two changes count once. A cache that is only read comes to write
//! no notes at all. One that is to be exact marks no block, and notes every use.
//!
//! Invariants, which `check` verifies here and `KvCache::check` over all shards: (1) the block at
//! slot *s* is found under `hashes[s]`, and is the only one with that slot; (2) every slot is
//! either in use by one block or free; (3) no two blocks have one key; (4) what the ledger has
//! charged is what the shards hold and what is being written; (5) the leases of a hash have one
//! entry, and at least one holder.

use std::borrow::Borrow;
use std::hash::Hash;
use std::mem;
use std::sync::{Arc, Weak};

use hashbrown::HashTable;

use super::charged::Charged;
use super::clock::{Clock, Oldest};
use super::held::{Held, is_pinned};
use super::leases::Leases;
use super::ledger::Ledger;
use super::policy::Chosen;
use super::stats::{Count, Others};
use super::uses::Uses;
use super::{Policy, Slot};
use crate::offset::CheckError;
use crate::sync::{Mutex, Striped, Writing, thread_number};

/// What is on its way to a lower tier is counted weakly: its bytes go with the pin.
type ShardLeases<K> = Leases<Weak<Held<K>>>;

/// A shard where it stands: on cache lines of its own.
#[repr(C, align(128))]
pub(super) struct Shard<K> {
    books: Striped<Books<K>, Desk>,
    pub(super) others: Others,
    clock: Clock,
    /// How old the next victims are.
    pub(super) oldest: Oldest,
}

impl<K> Shard<K> {
    pub(super) fn new(policy: Chosen, exact: bool, clock: Clock) -> Self {
        let books = Striped::new(Books::new(policy, exact));
        Shard { books, others: Others::default(), clock, oldest: Oldest::default() }
    }

    /// The block under `key`, which counts as used.
    #[inline]
    pub(super) fn get<Q: Hash + Eq + ?Sized>(&self, hash: u64, key: &Q) -> Option<Arc<Held<K>>>
    where
        K: Borrow<Q> + Eq,
    {
        let books = self.books.read(thread_number());
        let desk = books.own();
        let Some(held) = books.find(hash, key) else {
            desk.misses.more();
            return None;
        };
        let found = Arc::clone(held);
        desk.hits.more();
        let known = held.is_noted(books.changes) || {
            let noted = desk.uses.note(held.slot());
            if noted && !books.exact {
                held.noted(books.changes);
            }
            noted
        };
        drop(books);
        if !known {
            self.tell(hash, &found);
        }
        Some(found)
    }

    /// Whether there is a block under `key`.
    pub(super) fn contains<Q: Hash + Eq + ?Sized>(&self, hash: u64, key: &Q) -> bool
    where
        K: Borrow<Q> + Eq,
    {
        self.books.read(thread_number()).find(hash, key).is_some()
    }

    /// The books, to be changed; what was used before is known to the policy.
    pub(super) fn books(&self) -> Writing<'_, Books<K>, Desk> {
        let mut writing = self.books.write();
        self.tell_all(&mut writing);
        writing
    }

    /// Runs `change` on the leases, before the policy is told anything: a policy that panics leaves
    /// nothing undone here.
    pub(super) fn change_leases<R>(&self, change: impl FnOnce(&mut ShardLeases<K>) -> R) -> R {
        let mut writing = self.books.write();
        let changed = change(&mut writing.leases);
        self.tell_all(&mut writing);
        changed
    }

    /// Tells the policy what the notes say. One that has panicked is replaced first.
    fn tell_all(&self, writing: &mut Writing<'_, Books<K>, Desk>) {
        let (books, desks) = writing.parts();
        let policy = books.policy.get_mut();
        if policy.has_panicked() {
            policy.dismiss(books.index.iter().map(|held| held.slot()));
        }
        policy.set_now(self.clock.now());
        for desk in desks {
            desk.uses.told(|slot| policy.touch(slot));
        }
        self.oldest.publish(policy.oldest());
    }

    /// Publishes how old the next victims are, after a change.
    pub(super) fn publish(&self, books: &mut Books<K>) {
        self.oldest.publish(books.policy.get_mut().oldest());
    }

    /// Tells the policy of what is noted, and of a use for which there was no more room.
    #[cold]
    #[inline(never)]
    fn tell(&self, hash: u64, used: &Arc<Held<K>>) {
        let mut books = self.books();
        if books.index.find(hash, |held| Arc::ptr_eq(held, used)).is_some() {
            books.policy.get_mut().touch(used.slot());
            if !books.exact {
                used.noted(books.changes);
            }
        }
    }

    /// Calls of `get` that found their key, and those that did not.
    pub(super) fn requested(&self) -> (u64, u64) {
        let add =
            |(hits, misses), desk: &Desk| (hits + desk.hits.get(), misses + desk.misses.get());
        self.books.stripes().fold((0, 0), add)
    }
}

/// What those who look up have to themselves, for each stripe of the lock. Written by who has the
/// stripe, or by who has all.
#[derive(Debug, Default)]
pub(super) struct Desk {
    hits: Count,
    misses: Count,
    uses: Uses,
}

/// What the lock guards.
#[repr(C)]
pub(super) struct Books<K> {
    /// By the hash of the key. One pointer for each block: the index of 100,000 blocks takes a
    /// megabyte.
    index: HashTable<Arc<Held<K>>>,
    /// How often blocks have come, gone, or been asked to go; uses between two of these count
    /// once.
    changes: u32,
    /// They all count: no block is ever marked as noted.
    exact: bool,
    /// The hash of the block at each slot; of a free slot, what was there.
    hashes: Vec<u64>,
    free: Vec<Slot>,
    /// Used by who changes the books, who needs no second lock for it. This one is there because
    /// those who look up share the books, and a policy need not be one that can be shared.
    policy: Mutex<Chosen>,
    /// Who may put in what it fetches, and what is on its way to a lower tier.
    pub(super) leases: ShardLeases<K>,
}

impl<K> Books<K> {
    fn new(policy: Chosen, exact: bool) -> Self {
        // What has just come has been noted after no change.
        let changes = 1;
        let policy = Mutex::new(policy);
        let leases = Leases::default();
        Books {
            index: HashTable::new(),
            changes,
            exact,
            hashes: Vec::new(),
            free: Vec::new(),
            policy,
            leases,
        }
    }

    /// From now on uses are news again.
    fn changed(&mut self) {
        self.changes = self.changes.wrapping_add(1);
    }
}

impl<K: Eq> Books<K> {
    #[inline]
    fn find<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Option<&Arc<Held<K>>>
    where
        K: Borrow<Q>,
    {
        self.index.find(hash, |held| held.key.borrow() == key)
    }

    /// The block under `key`, which counts as used.
    pub(super) fn used<Q: Eq + ?Sized>(&mut self, hash: u64, key: &Q) -> Option<Arc<Held<K>>>
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

    /// Breaks leases of the key, and marks what is on its way under it: something else is put, or
    /// it is removed.
    #[inline]
    fn supersede<Q: Eq + ?Sized>(&mut self, hash: u64, key: &Q)
    where
        K: Borrow<Q>,
    {
        if !self.leases.is_quiet() {
            self.leases.supersede(hash, |handing| {
                if let Some(held) = handing.upgrade().filter(|held| held.key.borrow() == key) {
                    held.supersede();
                }
            });
        }
    }

    /// What was just evicted begins its way to the taker; returns its number.
    pub(super) fn hand_over(&mut self, held: &Arc<Held<K>>) -> u64 {
        // Its slot is free, and has its hash until the next block comes.
        self.leases.hand_over(self.hashes[held.slot() as usize], Arc::downgrade(held))
    }

    /// Ends a lease. If it is unbroken, a value may be put; else the one that is there, if any, is
    /// the answer. If `Eq` panics, the lease has not ended.
    pub(super) fn redeem(
        &mut self,
        hash: u64,
        key: &K,
        number: u64,
    ) -> Result<(), Option<Arc<Held<K>>>> {
        let there = self.find(hash, key).cloned();
        let live = self.leases.is_live(hash, number);
        self.leases.give_up(hash, number);
        // Another key of the same hash could have had the lease, and this one a value.
        if live && there.is_none() { Ok(()) } else { Err(there) }
    }

    /// Puts a block in. Returns its slot, and the block that was there under the same key. The
    /// caller [tells](Self::tell_placed) the policy.
    pub(super) fn place<'a>(
        &mut self,
        hash: u64,
        charged: Charged<'a, K>,
        ledger: &'a Ledger,
    ) -> (Slot, Option<Charged<'a, K>>) {
        self.changed();
        self.supersede(hash, &charged.held().key);
        if let Some(old) = self.index.find_mut(hash, |old| old.key == charged.held().key) {
            // From here on no code of the caller's runs.
            let slot = old.slot();
            charged.held().stands_at(slot);
            let old = mem::replace(old, charged.place());
            old.supersede();
            return (slot, Some(Charged::taken(old, ledger)));
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.hashes.push(hash);
            (self.hashes.len() - 1) as Slot
        });
        self.hashes[slot as usize] = hash;
        charged.held().stands_at(slot);
        let hashes = &self.hashes;
        self.index.insert_unique(hash, charged.place(), |held| hashes[held.slot() as usize]);
        (slot, None)
    }

    /// Tells the policy that a block has come to a slot, in the place of another or of none.
    pub(super) fn tell_placed(&mut self, slot: Slot, hash: u64, depth: u32, replaced: bool) {
        let policy = self.policy.get_mut();
        if replaced {
            policy.touch(slot);
        } else {
            policy.insert_at_depth(slot, hash, depth);
        }
    }

    /// Tells the policy that the block at a slot has gone, but not by [`evict`](Self::evict).
    pub(super) fn tell_gone(&mut self, slot: Slot) {
        self.policy.get_mut().remove(slot);
    }

    /// Takes the block under `key` out. The caller [tells](Self::tell_gone) the policy of the slot.
    pub(super) fn remove<'a, Q: Eq + ?Sized>(
        &mut self,
        hash: u64,
        key: &Q,
        ledger: &'a Ledger,
    ) -> Option<(Slot, Charged<'a, K>)>
    where
        K: Borrow<Q>,
    {
        self.supersede(hash, key);
        let entry = self.index.find_entry(hash, |held| held.key.borrow() == key).ok()?;
        let held = entry.remove().0;
        let slot = self.vacate(&held);
        held.supersede();
        Some((slot, Charged::taken(held, ledger)))
    }

    /// Takes the block under `key` out if nobody has a pin on it. The caller
    /// [tells](Self::tell_gone) the policy of the slot.
    pub(super) fn remove_unpinned<'a>(
        &mut self,
        hash: u64,
        key: &K,
        ledger: &'a Ledger,
    ) -> Option<(Slot, Charged<'a, K>)> {
        let entry =
            self.index.find_entry(hash, |held| held.key == *key && !is_pinned(held)).ok()?;
        let held = entry.remove().0;
        Some((self.vacate(&held), Charged::taken(held, ledger)))
    }

    /// The slot of a block that has left the index is free.
    fn vacate(&mut self, held: &Held<K>) -> Slot {
        self.changed();
        let slot = held.slot();
        self.free.push(slot);
        slot
    }

    /// Takes out the block that goes next; `None` if all are pinned. The one returned is not.
    /// `other`: what LRU's candidate of all shards is worth.
    pub(super) fn evict<'a>(
        &mut self,
        other: Option<f32>,
        ledger: &'a Ledger,
    ) -> Option<Charged<'a, K>> {
        self.changed();
        self.policy.get_mut().set_other(other);
        let Books { index, hashes, policy, .. } = self;
        let may_go = |slot: Slot| {
            let hash = hashes.get(slot as usize);
            let held = hash.and_then(|&hash| index.find(hash, |held| held.slot() == slot));
            held.is_some_and(|held| !is_pinned(held))
        };
        let slot = policy.get_mut().victim(&mut { may_go })?;
        let hash = *hashes.get(slot as usize)?;
        // Looked at once more: what a policy answers need not be what it was told.
        let entry = index.find_entry(hash, |held| held.slot() == slot && !is_pinned(held)).ok()?;
        let held = entry.remove().0;
        self.free.push(slot);
        Some(Charged::taken(held, ledger))
    }

    /// Takes every block out. The caller [tells](Self::tell_gone) the policy of each slot.
    pub(super) fn drain<'a>(&mut self, ledger: &'a Ledger) -> (Vec<Slot>, Vec<Charged<'a, K>>) {
        self.changed();
        self.leases.supersede_all(|handing| {
            if let Some(held) = handing.upgrade() {
                held.supersede();
            }
        });
        let all: Vec<_> = self.index.drain().map(|held| Charged::taken(held, ledger)).collect();
        let slots: Vec<Slot> = all.iter().map(|charged| charged.held().slot()).collect();
        self.free.extend(&slots);
        all.iter().for_each(|charged| charged.held().supersede());
        (slots, all)
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Verifies the invariants at the head of this file. Returns the bytes of all blocks.
    /// O(blocks).
    pub(super) fn check(&self) -> Result<u64, CheckError> {
        let wrong = |invariant, what| Err(CheckError { invariant, what });
        let mut taken = vec![false; self.hashes.len()];
        for held in &self.index {
            let slot = held.slot();
            let Some(taken) = taken.get_mut(slot as usize) else {
                return wrong(1, format!("a block stands at slot {slot} of {}", self.hashes.len()));
            };
            let hash = self.hashes[slot as usize];
            let same = |other: &Arc<Held<K>>| Arc::ptr_eq(other, held);
            if std::mem::replace(taken, true) || self.index.find(hash, same).is_none() {
                return wrong(1, format!("slot {slot} has two blocks, or the hash of neither"));
            }
            if self.index.iter_hash(hash).filter(|other| other.key == held.key).count() != 1 {
                return wrong(3, format!("the key at slot {slot} is there twice"));
            }
        }
        for &slot in &self.free {
            match taken.get_mut(slot as usize) {
                Some(taken) if !*taken => *taken = true,
                _ => return wrong(2, format!("slot {slot} is free and in use, or free twice")),
            }
        }
        match taken.iter().position(|&taken| !taken) {
            Some(lost) => wrong(2, format!("slot {lost} is neither free nor in use")),
            None => match self.leases.defect() {
                Some(defect) => wrong(5, defect),
                None => Ok(self.index.iter().map(|held| held.charge()).sum()),
            },
        }
    }
}

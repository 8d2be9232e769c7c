//! *Shard*: an index, a policy, and a lock around both.
//!
//! Invariants, which `check` verifies here and `KvCache::check` over all shards: (1) the block at slot *s* is found under `hashes[s]`, and is the only one with that
//! slot; (2) every slot is either in use by one block or free; (3) no two blocks
//! have one key; (4) what the ledger has charged is what the shards hold and what is being written.

use std::borrow::Borrow;
use std::hash::Hash;
use std::mem;
use std::sync::Arc;

use hashbrown::HashTable;

use super::held::{Held, is_pinned};
use super::policy::Chosen;
use super::stats::{Counts, Others};
use super::{Policy, Slot};
use crate::offset::CheckError;
use crate::sync::Mutex;

/// A shard where it stands: on cache lines of its own, two at a time, as processors fetch them in pairs. In this order all that a
/// look-up writes here is in the first line, with what it reads first: figures, lock, head of the index.
#[repr(C, align(128))]
pub(super) struct Shard<K> {
    pub(super) counts: Counts,
    pub(super) books: Mutex<Books<K>>,
    pub(super) others: Others,
}

impl<K> Shard<K> {
    pub(super) fn new(policy: Chosen) -> Self {
        let books = Books { index: HashTable::new(), hashes: Vec::new(), free: Vec::new(), policy };
        Shard { books: Mutex::new(books), counts: Counts::default(), others: Others::default() }
    }
}

/// What the lock guards.
#[repr(C)]
pub(super) struct Books<K> {
    /// By the hash of the key. One pointer for each block: the index of 100,000 blocks takes a megabyte.
    index: HashTable<Arc<Held<K>>>,
    /// The hash of the block at each slot; of a free slot, what was there.
    hashes: Vec<u64>,
    free: Vec<Slot>,
    policy: Chosen,
}

impl<K: Eq> Books<K> {
    /// The block under `key`, which counts as used.
    #[inline]
    pub(super) fn get<Q: Hash + Eq + ?Sized>(&mut self, hash: u64, key: &Q) -> Option<Arc<Held<K>>>
    where
        K: Borrow<Q>,
    {
        let held = self.index.find(hash, |held| held.key.borrow() == key)?;
        self.policy.touch(held.slot());
        Some(Arc::clone(held))
    }

    /// Whether there is one.
    pub(super) fn contains<Q: Hash + Eq + ?Sized>(&self, hash: u64, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.index.find(hash, |held| held.key.borrow() == key).is_some()
    }

    /// Puts a block in. Returns the one that was there under the same key.
    pub(super) fn put(&mut self, hash: u64, held: Arc<Held<K>>) -> Option<Arc<Held<K>>> {
        if let Some(old) = self.index.find_mut(hash, |old| old.key == held.key) {
            let slot = old.slot();
            held.stands_at(slot);
            let old = mem::replace(old, held);
            self.policy.touch(slot);
            return Some(old);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.hashes.push(hash);
            (self.hashes.len() - 1) as Slot
        });
        self.hashes[slot as usize] = hash;
        held.stands_at(slot);
        let hashes = &self.hashes;
        self.index.insert_unique(hash, held, |held| hashes[held.slot() as usize]);
        self.policy.insert(slot, hash);
        None
    }

    /// Takes the block under `key` out.
    pub(super) fn remove<Q: Hash + Eq + ?Sized>(&mut self, hash: u64, key: &Q) -> Option<Arc<Held<K>>>
    where
        K: Borrow<Q>,
    {
        let entry = self.index.find_entry(hash, |held| held.key.borrow() == key).ok()?;
        let held = entry.remove().0;
        Some(self.forget(held))
    }

    /// Takes the block under `key` out if nobody has a pin on it.
    pub(super) fn remove_unpinned(&mut self, hash: u64, key: &K) -> Option<Arc<Held<K>>> {
        let entry = self.index.find_entry(hash, |held| held.key == *key && !is_pinned(held)).ok()?;
        let held = entry.remove().0;
        Some(self.forget(held))
    }

    /// What is out of the index goes from the policy, too.
    fn forget(&mut self, held: Arc<Held<K>>) -> Arc<Held<K>> {
        self.policy.remove(held.slot());
        self.free.push(held.slot());
        held
    }

    /// Takes out the block that goes next; `None` if all are pinned. The one returned is not.
    pub(super) fn evict(&mut self) -> Option<Arc<Held<K>>> {
        let Books { index, hashes, policy, .. } = self;
        let may_go = |slot: Slot| {
            let hash = hashes.get(slot as usize);
            let held = hash.and_then(|&hash| index.find(hash, |held| held.slot() == slot));
            held.is_some_and(|held| !is_pinned(held))
        };
        let slot = policy.victim(&mut { may_go })?;
        let hash = *hashes.get(slot as usize)?;
        // Looked at once more: what a policy answers need not be what it was told.
        let entry = index.find_entry(hash, |held| held.slot() == slot && !is_pinned(held)).ok()?;
        let held = entry.remove().0;
        self.free.push(slot);
        Some(held)
    }

    /// Takes every block out.
    pub(super) fn drain(&mut self) -> Vec<Arc<Held<K>>> {
        let all: Vec<_> = self.index.drain().collect();
        for held in &all {
            self.policy.remove(held.slot());
            self.free.push(held.slot());
        }
        all
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Verifies the invariants at the head of this file. Returns the bytes of all blocks. O(blocks).
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
            None => Ok(self.index.iter().map(|held| held.len_bytes()).sum()),
        }
    }
}

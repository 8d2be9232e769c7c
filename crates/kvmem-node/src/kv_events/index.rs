//! [`Index`]: where the values of the node are, and what subscribers know of it.
//!
//! Changes say where the value of a key is *now*. The index notes that, and afterwards publishes
//! the difference to what it has announced. So a change that comes twice, or of a value that has
//! gone and come back, is no event.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::batch::{Batch, BlockHash, Medium, Removed, Stored};
use super::description::{Description, SUFFIX};
use super::feed::{Changes, News};
use crate::node::Place;

/// Entries that one batch of an announcement looks at.
const PER_BATCH: u32 = 512;
/// The most events and bytes of a batch, and the most hashes of an event.
const MAX_EVENTS: u32 = 1024;
const MAX_BYTES: usize = 1 << 20;
const MAX_HASHES: usize = 512;
/// Bytes of the number of the namespace before a key.
const NAMESPACE: usize = 2;
/// Bytes of the number of a group of layers behind the hash in a key of vLLM.
const GROUP: usize = 4;
/// Lengths of vLLM's hashes.
const HASHES: [usize; 2] = [16, 32];

/// A key of the node, and what is known of its value and of the description beside it.
#[derive(Debug, Default)]
struct Entry {
    /// The number of the namespace, and the key. A free entry has that of its last value.
    key: Box<[u8]>,
    hash: u64,
    now: Option<Medium>,
    announced: Option<Medium>,
    about: Option<Box<[u8]>>,
    /// Whether it was announced with its description.
    is_described: bool,
    /// Whether the description is in memory.
    has_about: bool,
    /// The lists in which the value and the description were last.
    listed: u32,
    about_listed: u32,
    is_changed: bool,
    is_to_store: bool,
}

/// The hashes of a chunk, and its group of layers.
struct Names<'a> {
    hashes: Hashes<'a>,
    group: Option<u32>,
}

enum Hashes<'a> {
    One([BlockHash<'a>; 1]),
    Many(Vec<BlockHash<'a>>),
}

impl<'a> Names<'a> {
    fn all(&self) -> &[BlockHash<'a>] {
        match &self.hashes {
            Hashes::One(one) => one,
            Hashes::Many(many) => many,
        }
    }
}

/// Keys, where their values are, and what was announced.
pub(super) struct Index {
    whole_hashes: bool,
    entries: Vec<Entry>,
    by_key: HashTable<u32>,
    hasher: RandomState,
    free: Vec<u32>,
    changed: Vec<u32>,
    /// Counts the lists.
    list: u32,
    /// Whether a list of all values has ended.
    pub(super) is_complete: bool,
}

/// How far an announcement of everything has come.
#[derive(Debug, Default)]
pub(super) struct Announcement {
    next: u32,
    end: u32,
    /// A bit for each entry that is done.
    done: Vec<u64>,
    has_begun: bool,
}

impl Announcement {
    pub(super) fn is_over(&self) -> bool {
        self.has_begun && self.next >= self.end
    }

    /// Marks an entry as done. Returns whether it was not.
    fn mark(&mut self, slot: u32) -> bool {
        // Entries behind the end came later, and have events of their own.
        let Some(word) = self.done.get_mut(slot as usize / 64) else { return false };
        let bit = 1 << (slot % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

impl Index {
    pub(super) fn new(whole_hashes: bool) -> Index {
        Index {
            whole_hashes,
            entries: Vec::new(),
            by_key: HashTable::new(),
            hasher: RandomState::default(),
            free: Vec::new(),
            changed: Vec::new(),
            list: 0,
            is_complete: false,
        }
    }

    /// Takes note of changes. [`Self::publish`] says them to subscribers.
    pub(super) fn take(&mut self, changes: &mut Changes) {
        let mut named = Vec::new();
        changes.drain(|news, namespace, key, about| match news {
            News::Placed(place) => {
                named.clear();
                named.extend(namespace.to_be_bytes());
                match key.strip_suffix(SUFFIX) {
                    Some(chunk) => {
                        named.extend(chunk);
                        self.place_about(&named, place, about);
                    }
                    None => {
                        named.extend(key);
                        self.place(&named, place);
                    }
                }
            }
            News::Begin => self.list += 1,
            News::EndAll => self.end_list(false),
            News::EndTier => self.end_list(true),
        });
    }

    fn place(&mut self, key: &[u8], place: Place) {
        let now = match place {
            Place::Memory => Some(Medium::Cpu),
            Place::Tier => Some(Medium::Storage),
            Place::Nowhere => None,
        };
        let Some(slot) = self.slot_for(key, now.is_some()) else { return };
        let entry = &mut self.entries[slot as usize];
        (entry.now, entry.listed) = (now, self.list);
        self.mark_changed(slot);
    }

    fn place_about(&mut self, chunk: &[u8], place: Place, about: &[u8]) {
        let is_there = place == Place::Memory && !about.is_empty();
        let Some(slot) = self.slot_for(chunk, is_there) else { return };
        let entry = &mut self.entries[slot as usize];
        (entry.has_about, entry.about_listed) = (is_there, self.list);
        if is_there && entry.about.is_none() && Description::read(about).is_some() {
            // A key names its input: all descriptions of it are equal.
            entry.about = Some(about.into());
        }
        self.mark_changed(slot);
    }

    /// Ends a list: what was not in it is nowhere, or not in the tier.
    fn end_list(&mut self, of_tier: bool) {
        self.is_complete |= !of_tier;
        for slot in 0..self.entries.len() {
            let entry = &mut self.entries[slot];
            let is_of = !of_tier || entry.now == Some(Medium::Storage);
            let mut changes = false;
            if is_of && entry.now.is_some() && entry.listed != self.list {
                (entry.now, changes) = (None, true);
            }
            if !of_tier && entry.has_about && entry.about_listed != self.list {
                (entry.has_about, changes) = (false, true);
            }
            if changes {
                self.mark_changed(slot as u32);
            }
        }
    }

    fn mark_changed(&mut self, slot: u32) {
        if !std::mem::replace(&mut self.entries[slot as usize].is_changed, true) {
            self.changed.push(slot);
        }
    }

    fn find(&self, key: &[u8]) -> Option<u32> {
        self.find_hashed(self.hasher.hash_one(key), key)
    }

    fn find_hashed(&self, hash: u64, key: &[u8]) -> Option<u32> {
        let is_it = |slot: &u32| {
            let entry = &self.entries[*slot as usize];
            entry.hash == hash && *entry.key == *key
        };
        self.by_key.find(hash, is_it).copied()
    }

    /// Returns the entry of a key; with `makes`, a new one if there is none.
    fn slot_for(&mut self, key: &[u8], makes: bool) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        let found = self.find_hashed(hash, key);
        if found.is_some() || !makes {
            return found;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[slot as usize];
        entry.hash = hash;
        // Keys have few lengths: most memory for them is used again.
        match entry.key.len() == key.len() {
            true => entry.key.copy_from_slice(key),
            false => entry.key = key.into(),
        }
        let entries = &self.entries;
        self.by_key.insert_unique(hash, slot, |slot| entries[*slot as usize].hash);
        Some(slot)
    }

    fn remove(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if let Ok(found) = self.by_key.find_entry(entry.hash, |it| *it == slot) {
            found.remove();
        }
        *entry = Entry { key: std::mem::take(&mut entry.key), ..Entry::default() };
        self.free.push(slot);
    }

    /// Adds to a batch what has changed since the last call. `full` takes a batch that is full.
    pub(super) fn publish(&mut self, batch: &mut Batch, mut full: impl FnMut(&mut Batch)) {
        let (mut removed, mut stored) = (Vec::new(), Vec::new());
        for slot in std::mem::take(&mut self.changed) {
            let entry = &mut self.entries[slot as usize];
            entry.is_changed = false;
            let describes = entry.about.is_some() && !entry.is_described;
            if entry.announced.is_some() && entry.announced != entry.now {
                removed.push(slot);
            }
            if entry.now.is_some() && (entry.announced != entry.now || describes) {
                entry.is_to_store = true;
                stored.push(slot);
            } else if entry.now.is_none() && entry.announced.is_none() && !entry.has_about {
                // Nobody knows of it: its slot is free at once.
                self.remove(slot);
            }
        }
        self.remove_announced(&removed, batch, &mut full);
        for slot in removed {
            let entry = &mut self.entries[slot as usize];
            (entry.announced, entry.is_described) = (None, false);
            if entry.now.is_none() {
                self.remove(slot);
            }
        }
        let mut chain = Vec::new();
        for slot in stored {
            let mut next = Some(slot);
            while let Some(slot) = next
                && std::mem::take(&mut self.entries[slot as usize].is_to_store)
            {
                chain.push(slot);
                next = self.parent_of(slot);
            }
            while let Some(slot) = chain.pop() {
                let entry = &mut self.entries[slot as usize];
                (entry.announced, entry.is_described) = (entry.now, entry.about.is_some());
                self.add_stored(slot, batch);
                if batch.len >= MAX_EVENTS || batch.bytes() >= MAX_BYTES {
                    full(batch);
                }
            }
        }
    }

    fn remove_announced(
        &self,
        removed: &[u32],
        batch: &mut Batch,
        full: &mut impl FnMut(&mut Batch),
    ) {
        // Few combinations of medium and group: an event for each, if it is not too long.
        let mut events: Vec<Removed<'_>> = Vec::new();
        for slot in removed {
            let entry = &self.entries[*slot as usize];
            let Some(medium) = entry.announced else { continue };
            let about = entry.about.as_deref().and_then(Description::read);
            let names = self.names_of(entry, about.as_ref());
            let group = names.group;
            let is_of = |it: &Removed<'_>| (it.medium, it.group) == (medium, group);
            let at = events.iter().position(is_of).unwrap_or_else(|| {
                events.push(Removed { hashes: Vec::new(), medium, group });
                events.len() - 1
            });
            events[at].hashes.extend(names.all());
            let is_long = |it: &Removed<'_>| it.hashes.len() >= MAX_HASHES;
            if let Some(long) = events.iter().position(is_long) {
                batch.removed(&events.swap_remove(long));
                if batch.len >= MAX_EVENTS || batch.bytes() >= MAX_BYTES {
                    full(batch);
                }
            }
        }
        events.iter().for_each(|event| batch.removed(event));
    }

    /// Returns the number of batches of an announcement that begins now.
    pub(super) fn batches(&self) -> u64 {
        self.entries.len().div_ceil(PER_BATCH as usize).max(1) as u64
    }

    /// Adds the next events of an announcement to a batch.
    pub(super) fn announce_some(&self, it: &mut Announcement, batch: &mut Batch) {
        if !std::mem::replace(&mut it.has_begun, true) {
            it.end = self.entries.len() as u32;
            it.done = vec![0; self.entries.len().div_ceil(64)];
            batch.clear();
        }
        let end = it.end.min(it.next.saturating_add(PER_BATCH));
        let mut chain = Vec::new();
        for slot in it.next..end {
            let mut next = Some(slot);
            while let Some(slot) = next
                && self.entries[slot as usize].announced.is_some()
                && it.mark(slot)
            {
                chain.push(slot);
                next = self.parent_of(slot);
            }
            while let Some(slot) = chain.pop() {
                self.add_stored(slot, batch);
            }
        }
        it.next = end;
    }

    /// Returns the entry of the chunk that this one continues.
    fn parent_of(&self, slot: u32) -> Option<u32> {
        let entry = &self.entries[slot as usize];
        let about = Description::read(entry.about.as_deref()?)?;
        let before = entry.key.strip_suffix(&about.group.to_be_bytes())?;
        let before = before.strip_suffix(*about.block_hashes.last()?)?;
        self.find(&[before, about.parent?, &about.group.to_be_bytes()].concat())
    }

    fn add_stored(&self, slot: u32, batch: &mut Batch) {
        let entry = &self.entries[slot as usize];
        let Some(medium) = entry.announced else { return };
        let about = entry.about.as_deref().filter(|_| entry.is_described);
        let about = about.and_then(Description::read);
        let names = self.names_of(entry, about.as_ref());
        let parent = about.as_ref().and_then(|about| about.parent).map(|it| self.hash(it));
        let (hashes, group) = (names.all(), names.group);
        batch.stored(&Stored { hashes, parent, medium, group, about: about.as_ref() });
    }

    /// Returns the hashes and the group of a chunk: those of its description, or what its key says.
    fn names_of<'a>(&self, entry: &'a Entry, about: Option<&Description<'a>>) -> Names<'a> {
        if let Some(about) = about {
            let hashes = about.block_hashes.iter().map(|hash| self.hash(hash)).collect();
            return Names { hashes: Hashes::Many(hashes), group: Some(about.group) };
        }
        let key = &entry.key[NAMESPACE..];
        let (hash, group) = match key.split_last_chunk::<GROUP>() {
            // No text ends with three zeros and a number.
            Some((hash, group @ [0, 0, 0, _])) if HASHES.contains(&hash.len()) => {
                (self.hash(hash), Some(u32::from_be_bytes(*group)))
            }
            _ => (BlockHash::Bytes(key), None),
        };
        Names { hashes: Hashes::One([hash]), group }
    }

    /// Returns a hash of vLLM's in the form of its events.
    fn hash<'a>(&self, hash: &'a [u8]) -> BlockHash<'a> {
        match hash.last_chunk() {
            Some(end) if !self.whole_hashes => BlockHash::Number(u64::from_be_bytes(*end)),
            _ => BlockHash::Bytes(hash),
        }
    }
}

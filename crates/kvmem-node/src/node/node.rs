//! [`Node`]: the state, and the steps that several calls share.

use std::collections::HashMap;
use std::hash::Hasher;
use std::ops::Range;

use hashbrown::HashTable;
use kvmem::arena::{Receipt, Region};
use kvmem::cache::History;
use kvmem::offset::{OffsetAllocator, RawHandle};
use siphasher::sip::SipHasher13;

use super::chains::Chains;
use super::ending::Ending;
use super::events::{EventKind, EventLog, NO_NAMESPACE};
use super::ghosts::Ghosts;
use super::holders::Holders;
use super::local::Local;
use super::misses::RecentMisses;
use super::namespaces::Namespaces;
use super::resize::Resizing;
use super::sessions::Sessions;
use super::stats::Counters;
use super::tier::TierQueue;
use super::{BlockHandle, Eviction, Granted, NO_BOUNDARY, NodeMemory, NodeOptions};
use crate::error::{BadIndex, CallError, NodeError};
use crate::format::{EntryCell, Header, MAX_KEY, State, Word};
use crate::socket::now_ms;

/// Values under keys in the memory of a node, in the state of the server.
///
/// # Time complexity
///
/// Each call takes amortized O(1) for each key, size or handle, besides the values that a
/// reservation evicts, however long the chains of values are.
#[derive(Debug)]
pub struct Node {
    pub(crate) memory: NodeMemory,
    pub(super) options: NodeOptions,
    pub(super) space: OffsetAllocator,
    /// The entries that are committed, by namespace and key.
    by_key: HashTable<u32>,
    /// Values and their parents.
    pub(super) chains: Chains,
    /// Of values that are committed and can be found, and of others that were evicted. LRU has
    /// none.
    pub(super) history: Option<Box<History>>,
    /// One for each entry that was ever used.
    pub(super) locals: Vec<Local>,
    /// Entries that were used and are free.
    free_slots: Vec<u32>,
    pub(super) namespaces: Namespaces,
    pub(super) sessions: Sessions,
    pub(super) holders: Holders,
    /// Pins and reservations that are over.
    pub(super) ending: Ending,
    pub(super) events: EventLog,
    pub(super) counters: Counters,
    /// Values that have left the memory.
    pub(super) ghosts: Ghosts,
    pub(super) recent_misses: RecentMisses,
    /// The place in the order of use from which on curves are due to be corrected.
    pub(super) curves_due: u64,
    /// The namespace that a block is being reserved for; [`NO_NAMESPACE`]: none.
    pub(super) evicting_for: u16,
    /// Pins of the server: values that are being removed from the tier, or verified.
    pub(super) server_pins: HashMap<u32, u32>,
    pub(super) tier: Option<TierQueue>,
    /// The place of the next value that is used, in the order of use. It only rises.
    pub(super) next_order: u64,
    /// How many values a reservation may still evict.
    pub(crate) evictions_left: u32,
    /// Counts the sessions that have ended.
    pub(super) sessions_ended: u64,
    /// A namespace that is being emptied, so that its place is free for another one.
    pub(super) emptying: Option<u16>,
    /// Keys whose values the tier must remove before it is used, after a recovery.
    pub(super) to_remove: Vec<(u16, Vec<u8>)>,
    /// Reserved entries of an earlier server, into whose extents a device may still read for it.
    /// They count for no namespace.
    pub(super) unfinished_reads: Vec<u32>,
    pub(super) resizing: Resizing,
}

impl Node {
    /// Makes a node of memory that nobody has used. The memory is [shared](kvmem::arena::Backing).
    ///
    /// # Errors
    /// [`NodeError::Option`], [`NodeError::Memory`] and [`NodeError::System`].
    pub fn create(bytes: Region, options: NodeOptions) -> Result<Node, NodeError> {
        let mut node = Node::over(NodeMemory::create(bytes, &options)?, options)?;
        node.fit_space(None);
        Ok(node)
    }

    /// Makes the state of memory without used entries.
    pub(super) fn over(memory: NodeMemory, options: NodeOptions) -> Result<Node, NodeError> {
        let mut space = OffsetAllocator::builder(memory.header.memory_len);
        if memory.header.boundary != NO_BOUNDARY {
            space = space.boundary(memory.header.boundary);
        }
        let space = space.build().map_err(NodeError::Space)?;
        Ok(Node {
            space,
            by_key: HashTable::new(),
            chains: Chains::default(),
            history: (options.eviction == Eviction::ScanResistant).then(Box::default),
            locals: Vec::new(),
            free_slots: Vec::new(),
            namespaces: Namespaces::new(&memory.header),
            sessions: Sessions::default(),
            holders: Holders::default(),
            ending: Ending::default(),
            events: EventLog::new(options.max_events),
            counters: Counters::default(),
            ghosts: Ghosts::new(memory.header.entries),
            recent_misses: RecentMisses::default(),
            curves_due: 0,
            evicting_for: NO_NAMESPACE,
            server_pins: HashMap::new(),
            tier: None,
            next_order: 1,
            evictions_left: u32::MAX,
            sessions_ended: 0,
            emptying: None,
            to_remove: Vec::new(),
            unfinished_reads: Vec::new(),
            resizing: Resizing::new(memory.header.memory_len),
            memory,
            options,
        })
    }

    pub(super) fn entry(&self, slot: u32) -> &EntryCell {
        &self.memory.entries()[slot as usize]
    }

    /// Returns the word of an entry that this server wrote or accepted.
    pub(super) fn word(&self, slot: u32) -> Word {
        self.entry(slot).word().expect("the server wrote the word")
    }

    /// Returns the entry of a handle in its use, and its word.
    pub(super) fn live(&self, handle: BlockHandle) -> Result<(u32, Word), CallError> {
        let BlockHandle { slot, generation } = handle;
        let stale = CallError::Stale { slot, generation };
        if slot as usize >= self.locals.len() {
            return Err(stale);
        }
        let word = self.word(slot);
        if word.generation == generation && word.state != State::Free {
            Ok((slot, word))
        } else {
            Err(stale)
        }
    }

    pub(super) fn granted(&self, slot: u32) -> Granted {
        let entry = self.entry(slot);
        let extent = entry.extent();
        Granted {
            handle: BlockHandle { slot, generation: entry.generation() },
            offset: extent.start,
            len: extent.end - extent.start,
            checksum: entry.checksum(),
        }
    }

    pub(super) fn len_of(&self, slot: u32) -> u64 {
        let extent = self.entry(slot).extent();
        extent.end - extent.start
    }

    /// Returns the bytes of memory that a block takes: whole units of the alignment, as far as
    /// there is memory.
    pub(super) fn space_of(&self, slot: u32) -> u64 {
        let space = self.range_of(self.entry(slot).extent());
        space.end - space.start
    }

    /// Returns the range of memory that a block of this extent takes.
    pub(super) fn range_of(&self, extent: Range<u64>) -> Range<u64> {
        // An index file that no server wrote has any numbers.
        let len = extent.end.saturating_sub(extent.start);
        extent.start..extent.start.saturating_add(self.space_for(len))
    }

    /// Returns the bytes of memory that a block of some bytes takes.
    pub(super) fn space_for(&self, len: u64) -> u64 {
        let Header { align, memory_len, .. } = self.memory.header;
        // The alignment is a power of two: a division would take as long as the rest of a pin. Only
        // a block that takes all of the memory ends within a unit.
        let mask = align.wrapping_sub(1);
        len.checked_add(mask).map_or(memory_len, |sum| (sum & !mask).min(memory_len))
    }

    /// Returns the hash of a namespace and a key, which is not 0. The keys come from clients, so
    /// their hash has a secret key. The index file has hashes of parents, so it has the secret,
    /// too.
    fn hash([low, high]: [u64; 2], namespace: u16, key: &[u8]) -> u64 {
        const PREFIX: usize = size_of::<u16>();
        let mut hasher = SipHasher13::new_with_keys(low, high);
        let mut bytes = [0; PREFIX + MAX_KEY];
        let Some(copy) = bytes.get_mut(PREFIX..PREFIX + key.len()) else {
            // A key that no value has.
            hasher.write(key);
            return hasher.finish().max(1);
        };
        // Bytes in a row take half the time of two pieces.
        copy.copy_from_slice(key);
        bytes[..PREFIX].copy_from_slice(&namespace.to_le_bytes());
        hasher.hash(&bytes[..PREFIX + key.len()]).max(1)
    }

    pub(super) fn hash_of_key(&self, namespace: u16, key: &[u8]) -> u64 {
        Node::hash(self.memory.header.hash_key, namespace, key)
    }

    /// Returns the hash of the key of an entry that has one.
    fn hash_of_entry(hash_key: [u64; 2], entry: &EntryCell) -> u64 {
        let len = usize::from(entry.word().expect("the server wrote the word").key_len);
        Node::hash(hash_key, entry.namespace(), &entry.key()[..len])
    }

    pub(super) fn find(&self, namespace: u16, key: &[u8]) -> Option<u32> {
        self.find_by(self.hash_of_key(namespace, key), namespace, key)
    }

    /// Returns the entry of a key that has this hash.
    pub(super) fn find_by(&self, hash: u64, namespace: u16, key: &[u8]) -> Option<u32> {
        self.by_key.find(hash, |&slot| self.entry(slot).has_key(namespace, key)).copied()
    }

    /// Returns the entry whose namespace and key have a hash.
    pub(super) fn find_hash(&self, hash: u64) -> Option<u32> {
        let hash_key = self.memory.header.hash_key;
        let is_it = |slot: &u32| Node::hash_of_entry(hash_key, self.entry(*slot)) == hash;
        self.by_key.find(hash, is_it).copied()
    }

    /// Returns whether the value of an entry has outlived its time.
    pub(super) fn is_expired(&self, slot: u32, now: u64) -> bool {
        let expires_at = self.entry(slot).expires_at();
        expires_at != 0 && expires_at <= now
    }

    /// Makes a committed entry known under its key, links it with its parent and its children, and
    /// makes it evictable at the place that it has in the order of use. The key has no other entry.
    /// `is_only_in_tier` says whether the tier has the parent, if memory lacks it.
    pub(super) fn enter(&mut self, slot: u32, is_only_in_tier: impl FnOnce(&Node) -> bool) {
        let hash = Node::hash_of_entry(self.memory.header.hash_key, self.entry(slot));
        self.add_key(slot, hash);
        self.locals[slot as usize].order = self.entry(slot).order();
        if let Some(history) = &mut self.history {
            history.insert(slot, hash);
        }
        let (namespace, is_stored) =
            (self.entry(slot).namespace(), self.locals[slot as usize].is_unused);
        if let Some(stack) = self.namespaces.at(namespace).curve.stack() {
            stack.remove(hash, is_stored);
        }
        self.link(slot, hash, is_only_in_tier);
        self.queue(slot);
    }

    /// Makes a committed entry known under its key, which has this hash.
    pub(super) fn add_key(&mut self, slot: u32, hash: u64) {
        let entries = self.memory.entries();
        let hash_key = self.memory.header.hash_key;
        let hash_of = |slot: &u32| Node::hash_of_entry(hash_key, &entries[*slot as usize]);
        self.by_key.insert_unique(hash, slot, hash_of);
    }

    /// Makes room for the keys of a number of entries: none of them is hashed again when others
    /// come.
    pub(super) fn reserve_keys(&mut self, count: usize) {
        let entries = self.memory.entries();
        let hash_key = self.memory.header.hash_key;
        let hash_of = |slot: &u32| Node::hash_of_entry(hash_key, &entries[*slot as usize]);
        self.by_key.reserve(count, hash_of);
    }

    /// Ends the look-ups of an entry. Returns the hash of its key.
    pub(super) fn leave(&mut self, slot: u32, key_len: u8) -> u64 {
        let entry = &self.memory.entries()[slot as usize];
        let (namespace, key): (_, [u8; MAX_KEY]) = (entry.namespace(), entry.key());
        let hash = Node::hash(self.memory.header.hash_key, namespace, &key[..key_len.into()]);
        if let Ok(found) = self.by_key.find_entry(hash, |other| *other == slot) {
            found.remove();
        }
        hash
    }

    /// Returns what was mapped, and where it lies.
    #[must_use]
    pub fn memory_receipt(&self) -> &Receipt {
        self.memory.bytes.receipt()
    }

    /// Returns the number of committed values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Returns whether there is no committed value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Takes a free entry, if there is one. Its word still says that it is free.
    pub(super) fn take_slot(&mut self, extent: RawHandle) -> Option<u32> {
        let local = Local::new(extent);
        if let Some(slot) = self.free_slots.pop() {
            self.locals[slot as usize] = local;
            return Some(slot);
        }
        let slot = u32::try_from(self.locals.len()).ok()?;
        if slot == self.memory.header.entries {
            return None;
        }
        self.locals.push(local);
        // A recovery looks at this entry from now on.
        self.memory.header_cell().set_entries_used(slot + 1);
        Some(slot)
    }

    /// Grows `locals` over the entries that were ever used, as free ones, during a recovery.
    pub(super) fn cover_used(&mut self) -> Result<(), BadIndex> {
        let used = self.memory.header_cell().entries_used(self.memory.header.entries)?;
        self.locals.resize(used as usize, Local::new(RawHandle::from_bits(0)));
        Ok(())
    }

    pub(super) fn add_free_slot(&mut self, slot: u32) {
        self.free_slots.push(slot);
    }

    pub(super) fn free_slots(&self) -> &[u32] {
        &self.free_slots
    }

    /// Returns the number of entries that are not free.
    pub(super) fn used_slots(&self) -> u64 {
        (self.locals.len() - self.free_slots.len()) as u64
    }

    pub(super) fn has_free_slot(&self) -> bool {
        !self.free_slots.is_empty() || self.locals.len() < self.memory.header.entries as usize
    }

    /// Frees the extent of an entry that can no longer be found and that nobody uses.
    pub(super) fn release_extent(&mut self, slot: u32) {
        let (namespace, space) = (self.namespace_of(slot), self.space_of(slot));
        let entry = self.entry(slot);
        // First the word, then the space: rule 2 of the format.
        entry.free(entry.generation());
        self.free_space(slot);
        self.namespaces.at(namespace).remove_block(space);
        self.free_slots.push(slot);
    }

    /// Returns the namespace that an entry counts for: that of its key, or of the session that has
    /// reserved it.
    pub(super) fn namespace_of(&self, slot: u32) -> u16 {
        match self.word(slot).state {
            State::Reserved | State::Prepared => {
                let fetched = self.tier.as_ref().and_then(|it| it.fetched_into.get(&slot));
                if let Some((namespace, _)) = fetched {
                    return *namespace;
                }
                let of = self.entry(slot).users().next().and_then(|user| self.sessions.at(user));
                of.expect("a reservation has a session").namespace
            }
            _ => self.entry(slot).namespace(),
        }
    }

    /// Notes in the index file that a value was used after all others.
    pub(super) fn set_order(&mut self, slot: u32) {
        self.entry(slot).set_order(self.next_order);
        self.next_order += 1;
    }

    /// Notes that a value that can be found was used after all others. Its record stays while it
    /// is pinned, so the end of the pin does not change its place.
    pub(super) fn note_use(&mut self, slot: u32, now: u64) {
        self.entry(slot).set_used_at(now);
        self.set_order(slot);
        let local = &mut self.locals[slot as usize];
        // An earlier record is stale now.
        (local.order, local.queued) = (self.next_order - 1, false);
        let is_pinned = local.pins > 0;
        let is_held = local.holding > 0;
        if let Some(history) = &mut self.history {
            history.touch(slot);
        }
        if !is_held {
            self.add_to_list(slot);
        }
        if is_pinned {
            // It does not hold its parent, which it is a use of.
            self.raise_parent(slot);
        }
    }

    /// Adds the record of a value to the list of its namespace, its priority and its kind.
    pub(super) fn add_to_list(&mut self, slot: u32) {
        let (namespace, priority) = (self.entry(slot).namespace(), self.entry(slot).priority());
        let list = self.namespaces.at(namespace).list(priority);
        list.add(&mut self.locals, self.history.as_deref(), slot);
    }

    /// Takes a committed value out of the index. The extent is free at once, or when the last pin
    /// ends.
    pub(super) fn withdraw(&mut self, slot: u32, kind: EventKind) {
        let word = self.word(slot);
        debug_assert_eq!(word.state, State::Committed);
        // A newer value hides what a tier may have under the key.
        let uncovers = match kind {
            EventKind::Evicted => !self.entry(slot).is_clean(),
            kind => kind == EventKind::Removed,
        };
        if uncovers {
            self.note_removal();
        }
        let hash = self.leave(slot, word.key_len);
        self.add_ghost(slot, hash, kind, now_ms());
        let stays_in_tier = kind == EventKind::Evicted && self.entry(slot).is_clean();
        if stays_in_tier {
            self.note_parent_of_stored(slot);
        }
        self.unlink(slot, stays_in_tier);
        match &mut self.history {
            // A key that is removed is not expected again.
            Some(history) if kind == EventKind::Removed => history.remove(slot),
            Some(history) => history.evict(slot),
            None => {}
        }
        if std::mem::take(&mut self.locals[slot as usize].verifying) {
            // The bytes stay until the scrubber is done with them.
            self.begin_server_pin(slot);
        }
        let entry = &self.memory.entries()[slot as usize];
        self.events.add(kind, entry.namespace(), &entry.key()[..word.key_len.into()]);
        if self.must_be_removed(slot, kind) {
            self.remove_from_tier(slot);
        } else if self.locals[slot as usize].pins > 0 {
            self.entry(slot).detach(word);
        } else {
            self.release_extent(slot);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Index files of earlier versions have hashes of a number and bytes.
        #[test]
        fn the_hash_of_a_key_is_that_of_its_parts(
            secret in any::<[u64; 2]>(),
            namespace in any::<u16>(),
            key in proptest::collection::vec(any::<u8>(), 1..=MAX_KEY),
        ) {
            let mut hasher = SipHasher13::new_with_keys(secret[0], secret[1]);
            hasher.write_u16(namespace);
            hasher.write(&key);
            prop_assert_eq!(Node::hash(secret, namespace, &key), hasher.finish().max(1));
        }
    }
}

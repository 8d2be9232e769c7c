//! *Entry*: one block of the memory, as it lies in the index file.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use kvmem::tier::DataType;

use super::{MAX_KEY, WORDS_OF_BITMAP, announce, put};
use crate::crc;

/// The state of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The entry has no extent.
    Free,
    /// A session writes to the extent. It has no key yet.
    Reserved,
    /// [`Reserved`](State::Reserved), with the key that a commit in progress assigns.
    Prepared,
    /// The value can be found under its key.
    Committed,
    /// The value was removed or replaced while sessions had it pinned: it cannot be found, and the
    /// extent is in use.
    Detached,
}

/// The first word of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) state: State,
    pub(crate) key_len: u8,
    /// Which use of the entry this is. Handles of earlier ones are stale.
    pub(crate) generation: u32,
}

impl Word {
    fn bits(self) -> u64 {
        self.state as u64 | u64::from(self.key_len) << 8 | u64::from(self.generation) << 32
    }

    /// Returns the word with these bits; `None` if a server of this version never writes them.
    fn from_bits(bits: u64) -> Option<Word> {
        let state = match bits as u8 {
            0 => State::Free,
            1 => State::Reserved,
            2 => State::Prepared,
            3 => State::Committed,
            4 => State::Detached,
            _ => return None,
        };
        let word = Word { state, key_len: (bits >> 8) as u8, generation: (bits >> 32) as u32 };
        (word.bits() == bits && usize::from(word.key_len) <= MAX_KEY).then_some(word)
    }
}

/// The fields that a commit adds to a reserved entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committing<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) namespace: u16,
    /// At most 15.
    pub(crate) priority: u8,
    pub(crate) data_type: DataType,
    /// The CRC-32C of the value, if the client has calculated it.
    pub(crate) checksum: Option<u32>,
    pub(crate) batch: u64,
    /// In milliseconds since the machine started; 0: never.
    pub(crate) expires_at: u64,
    /// The hash of the parent's namespace and key; 0: there is none.
    pub(crate) parent: u64,
}

/// The words of an entry in the file.
#[repr(C, align(64))]
pub(crate) struct EntryCell {
    word: AtomicU64,
    offset: AtomicU64,
    len: AtomicU64,
    /// Of the generation, the offset and the length.
    extent_sum: AtomicU64,
    /// The checksum of the value; above it the namespace, the priority, the data type, and whether
    /// there is a checksum.
    value: AtomicU64,
    batch: AtomicU64,
    expires_at: AtomicU64,
    /// Of all that a commit says.
    commit_sum: AtomicU64,
    key: [AtomicU64; MAX_KEY / 8],
    /// The sessions that use the extent: that of the reservation, or those with pins.
    users: [AtomicU64; WORDS_OF_BITMAP],
    /// When the value was last acquired, in milliseconds since the machine started.
    used_at: AtomicU64,
    /// State of the value in the tier: [`CLEAN`], [`TO_REMOVE`], or 0.
    tier: AtomicU64,
    /// The place of the value in the order of use: lower ones are evicted first.
    order: AtomicU64,
    /// The hash of the parent's namespace and key; 0: there is none. Part of what a commit says.
    parent: AtomicU64,
}

/// The tier has the value.
const CLEAN: u64 = 1;

/// The tier may have a value under the key, and must remove it before the entry is free.
const TO_REMOVE: u64 = 2;

impl EntryCell {
    /// Reads the state, and what belongs to it. `None`: no server of this version wrote it.
    pub(crate) fn word(&self) -> Option<Word> {
        // Acquire: pairs with the Release of `announce`, by an earlier process in a recovery.
        Word::from_bits(self.word.load(Ordering::Acquire))
    }

    /// Returns the generation, whatever the state.
    pub(crate) fn generation(&self) -> u32 {
        (self.word.load(Ordering::Relaxed) >> 32) as u32
    }

    pub(crate) fn extent(&self) -> Range<u64> {
        let (offset, len) = (load(&self.offset), load(&self.len));
        offset..offset.saturating_add(len)
    }

    /// Makes the entry a reservation of session `user`, or of the server.
    pub(crate) fn reserve(&self, generation: u32, extent: Range<u64>, user: Option<usize>) {
        let (offset, len) = (extent.start, extent.end - extent.start);
        put(&self.offset, offset);
        put(&self.len, len);
        put(&self.extent_sum, extent_sum(generation, offset, len));
        for (index, cell) in self.users.iter().enumerate() {
            let user = user.filter(|user| user / 64 == index);
            put(cell, user.map_or(0, |user| 1 << (user % 64)));
        }
        put(&self.tier, 0);
        self.announce(State::Reserved, 0, generation);
    }

    /// Gives a reservation its key. Not yet visible.
    pub(crate) fn prepare(&self, generation: u32, what: &Committing<'_>) {
        let mut key = [0; MAX_KEY];
        key[..what.key.len()].copy_from_slice(what.key);
        for (cell, eight) in self.key.iter().zip(key.chunks_exact(8)) {
            put(cell, u64::from_le_bytes(eight.try_into().expect("eight bytes")));
        }
        let value = u64::from(what.checksum.unwrap_or(0))
            | u64::from(what.namespace) << 32
            | u64::from(what.priority) << 48
            | (what.data_type as u64) << 52
            | u64::from(what.checksum.is_some()) << 56;
        put(&self.value, value);
        put(&self.batch, what.batch);
        put(&self.expires_at, what.expires_at);
        put(&self.parent, what.parent);
        put(&self.commit_sum, self.sum_of_commit(generation, what.key.len() as u8));
        self.announce(State::Prepared, what.key.len() as u8, generation);
    }

    /// Makes a prepared entry visible, and ends the use of its reservation.
    pub(crate) fn commit(&self, word: Word) {
        self.announce(State::Committed, word.key_len, word.generation);
    }

    /// Makes a prepared entry a reservation again.
    pub(crate) fn unprepare(&self, word: Word) {
        self.announce(State::Reserved, 0, word.generation);
    }

    /// Takes a committed entry out of the index while it is in use.
    pub(crate) fn detach(&self, word: Word) {
        self.announce(State::Detached, word.key_len, word.generation);
    }

    /// Ends the use of the extent. Only afterwards may it be allocated again.
    pub(crate) fn free(&self, generation: u32) {
        self.announce(State::Free, 0, generation);
    }

    fn announce(&self, state: State, key_len: u8, generation: u32) {
        announce(&self.word, Word { state, key_len, generation }.bits());
    }

    pub(crate) fn batch(&self) -> u64 {
        load(&self.batch)
    }

    pub(crate) fn namespace(&self) -> u16 {
        (load(&self.value) >> 32) as u16
    }

    pub(crate) fn priority(&self) -> u8 {
        (load(&self.value) >> 48) as u8 & 0xf
    }

    /// Returns the type of the value's elements. One that only a later version knows is unknown.
    pub(crate) fn data_type(&self) -> DataType {
        data_type((load(&self.value) >> 52) as u8 & 0xf)
    }

    /// Returns the checksum of the value, if its writer has calculated it.
    pub(crate) fn checksum(&self) -> Option<u32> {
        let value = load(&self.value);
        (value >> 56 != 0).then_some(value as u32)
    }

    pub(crate) fn expires_at(&self) -> u64 {
        load(&self.expires_at)
    }

    /// Returns the hash of the parent's namespace and key; 0: there is none.
    pub(crate) fn parent(&self) -> u64 {
        load(&self.parent)
    }

    pub(crate) fn order(&self) -> u64 {
        load(&self.order)
    }

    pub(crate) fn set_order(&self, order: u64) {
        put(&self.order, order);
    }

    pub(crate) fn used_at(&self) -> u64 {
        load(&self.used_at)
    }

    pub(crate) fn set_used_at(&self, now: u64) {
        put(&self.used_at, now);
    }

    /// Returns the bytes of the key, padded with zeros.
    pub(crate) fn key(&self) -> [u8; MAX_KEY] {
        let mut key = [0; MAX_KEY];
        for (eight, cell) in key.chunks_exact_mut(8).zip(&self.key) {
            eight.copy_from_slice(&load(cell).to_le_bytes());
        }
        key
    }

    /// Returns whether the entry has this key.
    pub(crate) fn has_key(&self, namespace: u16, key: &[u8]) -> bool {
        let len = (self.word.load(Ordering::Relaxed) >> 8) as u8;
        if usize::from(len) != key.len() || self.namespace() != namespace {
            return false;
        }
        let (eights, last) = key.as_chunks::<8>();
        let is = |(eight, cell): (&[u8; 8], _)| load(cell) == u64::from_le_bytes(*eight);
        if last.is_empty() {
            return eights.iter().zip(&self.key).all(is);
        }
        let mut padded = [0; 8];
        padded[..last.len()].copy_from_slice(last);
        eights.iter().chain([&padded]).zip(&self.key).all(is)
    }

    /// Says that the tier has the value.
    pub(crate) fn set_clean(&self) {
        put(&self.tier, CLEAN);
    }

    /// Says that the tier has nothing under the key.
    pub(crate) fn unset_tier(&self) {
        put(&self.tier, 0);
    }

    pub(crate) fn is_clean(&self) -> bool {
        load(&self.tier) == CLEAN
    }

    /// Says that the tier must remove the value before the entry is free.
    pub(crate) fn set_to_remove(&self) {
        put(&self.tier, TO_REMOVE);
    }

    pub(crate) fn is_to_remove(&self) -> bool {
        load(&self.tier) == TO_REMOVE
    }

    pub(crate) fn add_user(&self, user: usize) {
        let cell = &self.users[user / 64];
        put(cell, load(cell) | 1 << (user % 64));
    }

    pub(crate) fn remove_user(&self, user: usize) {
        let cell = &self.users[user / 64];
        put(cell, load(cell) & !(1 << (user % 64)));
    }

    /// Returns the sessions that use the extent.
    pub(crate) fn users(&self) -> impl Iterator<Item = usize> + '_ {
        self.users.iter().enumerate().flat_map(|(index, cell)| {
            // Each step takes the lowest bit away.
            let rest = |bits: &u64| Some(bits & bits.wrapping_sub(1));
            let left = std::iter::successors(Some(load(cell)), rest).take_while(|it| *it != 0);
            left.map(move |bits| index * 64 + bits.trailing_zeros() as usize)
        })
    }

    /// Returns whether the extent is the one that was stored.
    pub(crate) fn extent_is_whole(&self, generation: u32) -> bool {
        let (offset, len) = (load(&self.offset), load(&self.len));
        load(&self.extent_sum) == extent_sum(generation, offset, len)
            && len > 0
            && offset.checked_add(len).is_some()
    }

    /// Returns the extent, if the entry is in use and was written by a server.
    pub(crate) fn whole_extent(&self) -> Option<Range<u64>> {
        let word = self.word().filter(|it| it.state != State::Free)?;
        self.extent_is_whole(word.generation).then(|| self.extent())
    }

    /// Returns whether all that the commit said is as it was stored.
    pub(crate) fn commit_is_whole(&self, word: Word) -> bool {
        // A look-up compares whole words: a key with other bytes behind its end is never found.
        let is_padded = || self.key()[word.key_len.into()..].iter().all(|byte| *byte == 0);
        load(&self.commit_sum) == self.sum_of_commit(word.generation, word.key_len) && is_padded()
    }

    fn sum_of_commit(&self, generation: u32, key_len: u8) -> u64 {
        let mut words = [0; 7 + MAX_KEY / 8];
        words[0] = u64::from(key_len) << 32 | u64::from(generation);
        let parts = [&self.offset, &self.len, &self.value, &self.batch, &self.expires_at];
        let cells = parts.into_iter().chain(&self.key).chain([&self.parent]);
        words[1..].iter_mut().zip(cells).for_each(|(word, cell)| *word = load(cell));
        crc::of_words(&words).into()
    }
}

/// Returns the type with a number.
pub(crate) fn data_type(number: u8) -> DataType {
    DataType::ALL.get(usize::from(number)).copied().unwrap_or_default()
}

fn extent_sum(generation: u32, offset: u64, len: u64) -> u64 {
    crc::of_words(&[generation.into(), offset, len]).into()
}

/// Only the server's thread stores to the cell, so no ordering is needed.
fn load(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_holds_each_priority_and_data_type_next_to_the_checksum() {
        // SAFETY: a cell is words, and zeros are a free entry.
        let cell: EntryCell = unsafe { std::mem::zeroed() };
        for (data_type, checksum) in DataType::ALL
            .into_iter()
            .flat_map(|it| [None, Some(u32::MAX), Some(0)].map(|sum| (it, sum)))
        {
            for priority in 0..16 {
                cell.reserve(1, 0..4096, None);
                let (key, namespace) = (&b"key"[..], u16::MAX);
                let (batch, expires_at, parent) = (1, 2, 3);
                let what = Committing {
                    key,
                    namespace,
                    priority,
                    data_type,
                    checksum,
                    batch,
                    expires_at,
                    parent,
                };
                cell.prepare(1, &what);
                let had = (cell.namespace(), cell.priority(), cell.data_type(), cell.checksum());
                assert_eq!(had, (namespace, priority, data_type, checksum));
                assert!(cell.commit_is_whole(cell.word().expect("it is prepared")));
            }
        }
        assert_eq!(data_type(15), DataType::Unknown);
    }

    #[test]
    fn an_extent_that_no_server_wrote_is_not_whole() {
        // SAFETY: a cell is words, and zeros are a free entry.
        let cell: EntryCell = unsafe { std::mem::zeroed() };
        assert_eq!(cell.whole_extent(), None);
        cell.reserve(3, 4096..8192, Some(70));
        assert_eq!(cell.whole_extent(), Some(4096..8192));
        assert!(cell.extent_is_whole(3) && !cell.extent_is_whole(4));
        for (word, bit) in [(&cell.offset, 12), (&cell.len, 12), (&cell.extent_sum, 0)] {
            word.fetch_xor(1 << bit, Ordering::Relaxed);
            assert_eq!((cell.extent_is_whole(3), cell.whole_extent()), (false, None));
            word.fetch_xor(1 << bit, Ordering::Relaxed);
        }
        cell.free(3);
        assert_eq!(cell.whole_extent(), None, "it is in no use");
        // A sum that is right proves nothing about these.
        for (extent, is_whole) in
            [(4096..4096, false), (4096..4097, true), (u64::MAX - 9..u64::MAX, true)]
        {
            cell.reserve(3, extent.clone(), None);
            assert_eq!(cell.extent_is_whole(3), is_whole, "{extent:?}");
        }
        put(&cell.len, 10);
        put(&cell.extent_sum, extent_sum(3, u64::MAX - 9, 10));
        assert!(!cell.extent_is_whole(3), "it ends behind all numbers");
    }

    #[test]
    fn an_entry_has_one_key_and_the_sessions_that_use_it() {
        // SAFETY: a cell is words, and zeros are a free entry.
        let cell: EntryCell = unsafe { std::mem::zeroed() };
        let keys: [&[u8]; 6] =
            [b"k", b"k\0", b"eightlet", b"eightlet9", b"eightlet8", &[7; MAX_KEY]];
        for key in keys {
            cell.reserve(1, 0..64, Some(70));
            let what = Committing {
                key,
                namespace: 5,
                priority: 0,
                data_type: DataType::Unknown,
                checksum: None,
                batch: 0,
                expires_at: 0,
                parent: 0,
            };
            cell.prepare(1, &what);
            for other in keys {
                assert_eq!(cell.has_key(5, other), key == other, "{key:?} {other:?}");
            }
            assert!(!cell.has_key(6, key));
        }
        let users = |cell: &EntryCell| cell.users().collect::<Vec<_>>();
        assert_eq!(users(&cell), [70]);
        [0, 63, 64, 255, 64].into_iter().for_each(|user| cell.add_user(user));
        assert_eq!(users(&cell), [0, 63, 64, 70, 255]);
        [63, 64, 1].into_iter().for_each(|user| cell.remove_user(user));
        assert_eq!(users(&cell), [0, 70, 255]);
        cell.reserve(2, 0..64, None);
        assert_eq!(users(&cell), [0; 0]);
    }

    #[test]
    fn words_of_other_versions_are_reported() {
        for state in [State::Free, State::Reserved, State::Prepared, State::Committed] {
            let word = Word { state, key_len: 64, generation: u32::MAX };
            assert_eq!(Word::from_bits(word.bits()), Some(word));
        }
        for bits in [5, 3 | 65 << 8, 3 | 1 << 16] {
            assert_eq!(Word::from_bits(bits), None, "{bits:#x}");
        }
    }
}

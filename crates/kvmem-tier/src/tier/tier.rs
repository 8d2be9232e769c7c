//! [`DiskTier`]: stores, fetches and removes values.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use kvmem::offset::{AllocError, OffsetAllocator, RawAllocation};
use siphasher::sip128::{Hasher128, SipHasher24};

use super::admission::Doorman;
use super::error::{StoreError, TierError};
use super::journal::Journal;
use super::state::State;
use super::stats::TierStats;
use crate::device::{AlignedBuffer, Device, FileDevice, Read, Write};
use crate::format::{BLOCK, Digest, Entry, Layout};

/// Values on a disk, found again by their keys after a restart.
///
/// A key is any bytes. A value that is stored is found until it is removed, replaced or evicted: a
/// full tier evicts what was used least recently. Its bytes are verified whenever it is fetched; a
/// value that is damaged is a miss, and never the wrong bytes.
///
/// Threads may share it. A call blocks until the device is done; the transfers of a call run side
/// by side.
pub struct DiskTier<D: Device = FileDevice> {
    pub(super) device: D,
    /// The key of the digests.
    pub(super) key: [u8; 16],
    pub(super) layout: Layout,
    /// The blocks of the data area.
    pub(super) space: OffsetAllocator,
    pub(super) state: Mutex<State>,
    /// Locked before the state, never after it.
    pub(super) journal: Mutex<Journal>,
    /// The error that ended the journal.
    pub(super) failed: OnceLock<String>,
    pub(super) doorman: Doorman,
    /// Each key has one of these locks, under which a cache above changes its value.
    pub(crate) orders: [Mutex<()>; ORDERS],
}

/// Locks that order the changes of keys.
pub(super) const ORDERS: usize = 64;

/// A request for a value.
#[derive(Debug)]
pub struct Fetch<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Where the value goes; it must be as long as the value.
    pub into: &'a mut [u8],
}

/// The result of a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fetched {
    /// The value is in place, and its checksum is right.
    Hit,
    /// There is no value, or it was replaced or evicted while it was read.
    Absent,
    /// The value has another length than the memory for it.
    Length {
        /// Bytes of the value.
        len: u64,
    },
    /// The bytes of the disk were not those that were stored: the value is removed.
    Damaged,
    /// The device failed: the value is removed.
    Failed,
}

/// Returns the checksum of a value under a key.
pub(super) fn checksum(digest: &Digest, value: &[u8]) -> u32 {
    crc32c::crc32c_append(checksum_begin(digest, value.len() as u64), value)
}

/// Returns the checksum of what comes before the bytes of a value.
pub(super) fn checksum_begin(digest: &Digest, len: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&digest.0), &len.to_le_bytes())
}

/// Memory for the blocks of a value that the device cannot use in place: all of them if it is not
/// aligned, or else the last one if that is padded.
struct Padded {
    /// Bytes of the value that are used in place.
    in_place: usize,
    buffer: AlignedBuffer,
}

impl Padded {
    fn new(value: &[u8], align: usize) -> Self {
        let aligned = (value.as_ptr() as usize).is_multiple_of(align);
        let in_place = if aligned { value.len() / BLOCK * BLOCK } else { 0 };
        let rest = (value.len() - in_place).div_ceil(BLOCK);
        // A value without bytes has a block, too.
        let rest = if value.is_empty() { 1 } else { rest };
        Padded { in_place, buffer: AlignedBuffer::new(rest) }
    }
}

impl<D: Device> DiskTier<D> {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the identity of a key.
    fn digest(&self, key: &[u8]) -> Digest {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        std::hash::Hasher::write(&mut hasher, key);
        Digest(hasher.finish128().as_bytes())
    }

    /// Returns the lock that orders the changes of a key.
    pub(crate) fn order(&self, key: &[u8]) -> &Mutex<()> {
        &self.orders[usize::from(self.digest(key).0[15]) % ORDERS]
    }

    /// Returns whether a value that a cache evicts is to be written.
    pub(crate) fn admits(&self, key: &[u8], value: &[u8]) -> bool {
        let admits = self.doorman.admits(&self.digest(key), value.len() as u64);
        self.state().stats.not_admitted += u64::from(!admits);
        admits
    }

    /// Stores values, and returns the result of each in the same order. A value replaces that of
    /// the same key; of two with one key in a call, the later one counts. A stored value survives
    /// the process, and a power cut after the next [`flush`](Self::sync_all) or checkpoint.
    ///
    /// Values that begin at a multiple of the block are written from where they are; others are
    /// copied.
    pub fn store(&self, values: &[(&[u8], &[u8])]) -> Vec<Result<(), StoreError>> {
        let mut results: Vec<Result<(), StoreError>> = Vec::with_capacity(values.len());
        let mut placed = Vec::with_capacity(values.len());
        for (index, (key, value)) in values.iter().enumerate() {
            let place = || self.place(value.len() as u64);
            match self.usable().map_err(StoreError::from).and_then(|()| place()) {
                Ok(range) => {
                    let mut padded = Padded::new(value, self.device.memory_align());
                    let rest = &value[padded.in_place..];
                    padded.buffer[..rest.len()].copy_from_slice(rest);
                    placed.push((index, self.digest(key), range, padded));
                    results.push(Ok(()));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        let writes: Vec<Write<'_>> = placed
            .iter()
            .map(|(index, _, range, padded)| {
                let in_place = &values[*index].1[..padded.in_place];
                Write { at: self.at(range), parts: [in_place, &padded.buffer] }
            })
            .collect();
        let written = self.device.write(&writes);
        drop(writes);
        let entries: Vec<Entry> = placed
            .iter()
            .map(|(index, digest, range, _)| {
                let value = values[*index].1;
                let (start, checksum) = (range.offset as u32, checksum(digest, value));
                Entry { digest: *digest, number: 0, start, checksum, len: value.len() as u64 }
            })
            .collect();
        let position = {
            let mut state = self.state();
            for (((index, _, range, _), written), entry) in placed.iter().zip(written).zip(entries)
            {
                match written {
                    Ok(()) => {
                        state.stats.written_bytes += range.size * BLOCK as u64;
                        state.store(entry, range.handle);
                    }
                    Err(error) => {
                        let freed = self.space.free_raw(range.handle);
                        debug_assert!(freed.is_ok(), "{freed:?}");
                        let error = TierError::device("write", self.at(range))(error);
                        results[*index] = Err(error.into());
                    }
                }
            }
            while state.index.len() as u64 > self.max_entries(&state) {
                state.evict();
            }
            state.position()
        };
        if self.commit(position).is_err() {
            for (index, ..) in placed {
                results[index] = self.usable().map_err(StoreError::from);
            }
        }
        results
    }

    /// Returns the number of values for which a checkpoint has room.
    pub(super) fn max_entries(&self, state: &State) -> u64 {
        self.layout.max_entries().saturating_sub(state.quarantined.len() as u64)
    }

    /// Returns where a range begins in the device.
    fn at(&self, range: &RawAllocation) -> u64 {
        self.layout.data.start + range.offset * BLOCK as u64
    }

    /// Allocates the blocks of a value, and evicts others if need be.
    fn place(&self, len: u64) -> Result<RawAllocation, StoreError> {
        let blocks = len.div_ceil(BLOCK as u64).max(1);
        loop {
            match self.space.allocate_raw(blocks) {
                Ok(range) => return Ok(range),
                Err(AllocError::TooLarge { limit, .. }) => {
                    return Err(StoreError::TooLarge { len, limit: limit * BLOCK as u64 });
                }
                Err(_) => {}
            }
            if !self.make_room(blocks)? {
                return Err(StoreError::NoRoom { len });
            }
        }
    }

    /// Evicts values of at least `blocks` blocks together, and a little more: what is evicted is
    /// free only after a sync, which takes long. Returns false if there was nothing to evict.
    fn make_room(&self, blocks: u64) -> Result<bool, TierError> {
        const PART_OF_SPACE: u64 = 128;
        let wanted = blocks.max(self.layout.data.blocks() / PART_OF_SPACE);
        let (position, found) = {
            let mut state = self.state();
            let mut evicted = 0;
            let mut found = state.has_retired();
            while evicted < wanted
                && let Some(extent) = state.evict()
            {
                evicted += u64::from(extent.blocks);
                found = true;
            }
            (state.position(), found)
        };
        if found {
            self.flush(position)?;
        }
        Ok(found)
    }

    /// Fetches values, and returns the result of each in the same order. Only after
    /// [`Fetched::Hit`] do the bytes mean anything.
    ///
    /// Memory that begins at a multiple of the block is read into directly; other memory is copied
    /// to.
    pub fn fetch(&self, requests: &mut [Fetch<'_>]) -> Vec<Fetched> {
        let align = self.device.memory_align();
        let mut results = vec![Fetched::Absent; requests.len()];
        let digests: Vec<Digest> = requests.iter().map(|one| self.digest(one.key)).collect();
        let entries: Vec<Option<Entry>> = {
            let mut state = self.state();
            let mut find = |digest: &Digest| {
                state.index.touch(digest);
                state.index.get(digest).map(|found| found.entry)
            };
            digests.iter().map(&mut find).collect()
        };
        let mut wanted = Vec::with_capacity(requests.len());
        for (index, (request, entry)) in requests.iter().zip(entries).enumerate() {
            match entry {
                None => {}
                Some(entry) if entry.len != request.into.len() as u64 => {
                    results[index] = Fetched::Length { len: entry.len };
                }
                Some(entry) => wanted.push((index, entry, Padded::new(request.into, align))),
            }
        }
        let read = {
            let mut reads = Vec::with_capacity(wanted.len());
            let mut targets = requests.iter_mut().enumerate();
            for (index, entry, padded) in &mut wanted {
                let Some((_, target)) = targets.find(|(target, _)| target == index) else { break };
                let at = self.layout.data.block(entry.start);
                let parts = [&mut target.into[..padded.in_place], &mut *padded.buffer];
                reads.push(Read { at, parts });
            }
            self.device.read(&mut reads)
        };
        let outcomes: Vec<Fetched> = wanted
            .iter()
            .zip(read)
            .map(|((index, entry, padded), read)| {
                if read.is_err() {
                    return Fetched::Failed;
                }
                let into = &mut requests[*index].into;
                let rest = &mut into[padded.in_place..];
                rest.copy_from_slice(&padded.buffer[..rest.len()]);
                if checksum(&entry.digest, into) == entry.checksum {
                    Fetched::Hit
                } else {
                    Fetched::Damaged
                }
            })
            .collect();
        self.settle(&wanted, outcomes, &mut results);
        results
    }

    /// Counts the results of reads. A value that was replaced or evicted meanwhile is absent: its
    /// blocks may hold another one.
    fn settle(
        &self,
        wanted: &[(usize, Entry, Padded)],
        outcomes: Vec<Fetched>,
        results: &mut [Fetched],
    ) {
        let mut state = self.state();
        for ((index, entry, _), outcome) in wanted.iter().zip(outcomes) {
            let now = state.index.get(&entry.digest);
            if now.is_none_or(|now| now.entry.number != entry.number) {
                continue;
            }
            results[*index] = outcome;
            match outcome {
                Fetched::Damaged => state.stats.checksum_misses += 1,
                Fetched::Failed => state.stats.io_misses += 1,
                _ => continue,
            }
            state.quarantine(entry);
        }
        for result in results.iter() {
            match result {
                Fetched::Hit => state.stats.hits += 1,
                Fetched::Absent => state.stats.misses += 1,
                _ => {}
            }
        }
    }

    /// Returns the length of a value in bytes, if there is one. It does not count as used.
    #[must_use]
    pub fn len_of(&self, key: &[u8]) -> Option<u64> {
        let digest = self.digest(key);
        self.state().index.get(&digest).map(|found| found.entry.len)
    }

    /// Removes the values of keys; returns how many there were. They are not found again after the
    /// end of the process; after a power cut, only if the tier was [synced](Self::sync_all) since.
    ///
    /// # Errors
    /// [`TierError`]: the values are not found in this process, but may be after a restart.
    pub fn remove(&self, keys: &[&[u8]]) -> Result<usize, TierError> {
        let digests: Vec<Digest> = keys.iter().map(|key| self.digest(key)).collect();
        let (removed, position) = {
            let mut state = self.state();
            let removed = digests.iter().filter(|digest| state.remove(digest)).count();
            (removed, state.position())
        };
        self.commit(position)?;
        Ok(removed)
    }

    /// Removes every value, durably.
    ///
    /// # Errors
    /// [`TierError`]: the values are not found in this process, but may be after a restart.
    pub fn clear(&self) -> Result<(), TierError> {
        {
            let mut state = self.state();
            while let Some(oldest) = state.index.oldest() {
                state.remove(&oldest.entry.digest);
            }
        }
        self.checkpoint()
    }

    /// Makes all that was stored and removed before durable: a power cut does not undo it.
    ///
    /// # Errors
    /// [`TierError`]: the tier is read-only then.
    pub fn sync_all(&self) -> Result<(), TierError> {
        let position = self.state().position();
        self.flush(position)
    }

    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        let space = self.space.metrics();
        let state = self.state();
        let block = BLOCK as u64;
        let quarantined: u64 = state.quarantined.iter().map(|one| u64::from(one.blocks)).sum();
        TierStats {
            entries: state.index.len() as u64,
            capacity: self.layout.data.len,
            used: (self.layout.data.blocks() - space.free - quarantined) * block,
            quarantined: quarantined * block,
            index_bytes: state.index.bytes() as u64,
            ..state.stats
        }
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }
}

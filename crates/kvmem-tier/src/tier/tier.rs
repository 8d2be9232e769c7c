//! [`DiskTier`]: values on a device, found by their keys. [Storing](super::store) and
//! [fetching](super::fetch) have files of their own.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use kvmem::arena::Region;
use kvmem::offset::OffsetAllocator;
use kvmem::pool::Pool;
use kvmem::tier::TierOrigin;
use kvmem_encoding::Encoding;
use siphasher::sip128::{Hasher128, SipHasher24};

use super::admission::Doorkeeper;
use super::bounce::BounceBuffers;
use super::encoded::StreamBuffers;
use super::error::{StoreError, TierError};
use super::journal::{Journal, JournalFailure};
use super::origins::Origins;
use super::state::State;
use super::stats::TierStats;
use crate::device::{Device, FileDevice, FixedBuffersError};
use crate::format::{BLOCK, Digest, Layout, MAX_EXTENTS, Namespaces, Owner};
use crate::index::seconds_now;
use crate::process::Process;

/// Values on a disk, found again by their keys after a restart.
///
/// A key is any bytes. A value that is stored is found until it is removed, replaced or evicted: a
/// full tier evicts what was used least recently. Its bytes are verified whenever it is fetched; a
/// value that is damaged is a miss, and never the wrong bytes.
///
/// Threads may share it. A call blocks until the device is done; the transfers of a call run side
/// by side. A tier that is dropped writes a checkpoint: see
/// [`checkpoint_within`](Self::checkpoint_within).
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
    /// The error that ended the journal. Locked after the others.
    pub(super) failed: Mutex<Option<JournalFailure>>,
    /// Values that were not stored for a cache or a node, and why the last of them.
    pub(crate) store_errors: Mutex<Option<(u64, StoreError)>>,
    pub(super) doorkeeper: Doorkeeper,
    pub(super) bounce: BounceBuffers,
    pub(super) encoding: Encoding,
    pub(super) streams: StreamBuffers,
    /// Those that this process may use: threads that encode share them.
    pub(super) processors: usize,
    /// Time in which values were encoded, and decoded.
    pub(super) encode_ns: AtomicU64,
    pub(super) decode_ns: AtomicU64,
    /// The namespaces of the superblock. Locked for a moment, after the journal.
    pub(super) namespaces: RwLock<Namespaces>,
    pub(super) process: Process,
    /// This process, as the superblocks name it.
    pub(super) owner: Owner,
    /// Names the values of this tier to caches above.
    pub(super) origins: Origins,
    /// Each key has one of these locks, under which a cache above changes its value.
    pub(crate) orders: [Mutex<()>; ORDERS],
}

/// Locks that order the changes of keys.
pub(super) const ORDERS: usize = 64;

impl<D: Device> DiskTier<D> {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether this process is a forked child of the one that opened the tier. There the
    /// tier finds nothing, and every change fails with [`TierError::Forked`].
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    /// Fails in a forked child.
    pub(super) fn owned(&self) -> Result<(), TierError> {
        if self.is_forked() { Err(TierError::Forked) } else { Ok(()) }
    }

    /// Returns the identity of a key.
    pub(super) fn digest(&self, key: &[u8]) -> Digest {
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
        if self.is_forked() {
            return false;
        }
        let admits = self.doorkeeper.admits(&self.digest(key), key, value);
        self.state().stats.not_admitted += u64::from(!admits);
        admits
    }

    /// Returns the mark that a cache stores with a value that it has fetched, of the change
    /// `number`.
    pub(crate) fn origin(&self, number: u64) -> Option<TierOrigin> {
        self.origins.of(number)
    }

    /// Returns whether the tier still has the value of this origin under `key`, and then counts as
    /// a use what would be a store. The value is in the journal after
    /// [`commit_all`](Self::commit_all).
    pub(crate) fn has(&self, key: &[u8], origin: Option<TierOrigin>) -> bool {
        if origin.is_none() || self.is_forked() || self.usable().is_err() {
            return false;
        }
        let digest = self.digest(key);
        let mut state = self.state();
        // Of a suspect, the copy in memory may be the last one.
        let number = state.index.number_of(&digest).filter(|_| !state.suspects.has(&digest));
        let has = number.and_then(|number| self.origins.of(number)) == origin;
        if has {
            state.index.get_used(&digest);
            state.stats.unchanged += 1;
        }
        has
    }

    /// Returns once all changes so far are in the journal.
    pub(crate) fn commit_all(&self) -> Result<(), TierError> {
        let position = self.state().position();
        self.commit(position)
    }

    /// Returns the number of values for which a checkpoint has room. A value in several extents
    /// takes the room of four: it has two records, a third one may stay empty at the end of a block
    /// where two have no room, and when it is quarantined each extent takes one.
    pub(super) fn max_entries(&self, state: &State) -> u64 {
        let scattered = (MAX_EXTENTS as u64 - 1) * state.index.scattered() as u64;
        let quarantined = state.quarantined.len() as u64;
        self.layout.max_entries().saturating_sub(quarantined + scattered)
    }

    /// Returns the length of a value in bytes, if there is one that would be read now: a
    /// [suspect](super::Fetched::Suspect) is none. It does not count as used.
    #[must_use]
    pub fn len_of(&self, key: &[u8]) -> Option<u64> {
        self.unless_paused(key, |state, digest| state.index.len_of(digest))
    }

    /// Marks a value as used last; returns whether there is one, as [`len_of`](Self::len_of) does.
    /// The order of use is durable with the next checkpoint.
    pub fn touch(&self, key: &[u8]) -> bool {
        self.unless_paused(key, |state, digest| state.index.get_used(digest)).is_some()
    }

    /// Looks for a value that would be read now.
    fn unless_paused<T>(
        &self,
        key: &[u8],
        find: impl FnOnce(&mut State, &Digest) -> Option<T>,
    ) -> Option<T> {
        if self.is_forked() {
            return None;
        }
        let digest = self.digest(key);
        let mut state = self.state();
        let is_paused = state.suspects.is_paused(&digest, || self.device.now());
        if is_paused { None } else { find(&mut state, &digest) }
    }

    /// Removes the values of keys; returns how many there were. They are not found again after the
    /// end of the process; after a power cut, only if the tier was [synced](Self::sync_all) since.
    ///
    /// # Errors
    /// [`TierError`]: the values are not found in this process, but may be after a restart.
    pub fn remove(&self, keys: &[&[u8]]) -> Result<usize, TierError> {
        self.owned()?;
        self.begin_anew();
        let digests: Vec<Digest> = keys.iter().map(|key| self.digest(key)).collect();
        let (removed, position) = {
            let mut state = self.state();
            let removed = digests.iter().filter(|digest| state.remove(digest)).count();
            (removed, state.position())
        };
        self.commit(position)?;
        Ok(removed)
    }

    /// Returns whether a value of a key may be found now or later: it is there, also as a
    /// [suspect](super::Fetched::Suspect), or the journal does not have its removal yet.
    pub(crate) fn may_have(&self, key: &[u8]) -> bool {
        self.is_forked() || self.state().may_have(&self.digest(key))
    }

    /// Removes every value, durably.
    ///
    /// # Errors
    /// [`TierError`]: the values are not found in this process, but may be after a restart.
    pub fn clear(&self) -> Result<(), TierError> {
        self.owned()?;
        {
            let mut state = self.state();
            while state.remove_first().is_some() {}
        }
        self.checkpoint()
    }

    /// Makes all that was stored and removed before durable: a power cut does not undo it.
    ///
    /// # Errors
    /// [`TierError`]: the tier is read-only then.
    pub fn sync_all(&self) -> Result<(), TierError> {
        self.owned()?;
        self.begin_anew();
        let position = self.state().position();
        self.flush(position)
    }

    /// Returns the statistics; zeros in a forked child.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        if self.is_forked() {
            return TierStats::default();
        }
        let space = self.space.metrics();
        let fixed = self.device.fixed_buffers();
        let state = self.state();
        let block = BLOCK as u64;
        let quarantined: u64 = state.quarantined.iter().map(|(one, _)| u64::from(one.blocks)).sum();
        TierStats {
            entries: state.index.len() as u64,
            scattered: state.index.scattered() as u64,
            unverified_values: state.index.unverified() as u64,
            suspects: state.suspects.len() as u64,
            capacity: self.layout.data.len,
            used: (self.layout.data.blocks() - space.free - quarantined) * block,
            quarantined: quarantined * block,
            index_bytes: state.index.bytes() as u64,
            lifetime_bytes: state.lifetime_bytes(),
            bytes_per_day: state.bytes_per_day(seconds_now().into()),
            fixed_buffer_bytes: fixed.bytes,
            fixed_buffer_transfers: fixed.transfers,
            read_only: self.usable().is_err(),
            // Relaxed: counts.
            encode_ns: self.encode_ns.load(Ordering::Relaxed),
            decode_ns: self.decode_ns.load(Ordering::Relaxed),
            ..state.stats
        }
    }

    /// Returns whether nothing is stored until the journal is begun anew.
    pub(crate) fn is_read_only(&self) -> bool {
        !self.is_forked() && self.usable().is_err()
    }

    /// Returns the number of values that were let go without a call that removes.
    pub(crate) fn let_go(&self) -> u64 {
        if self.is_forked() { 0 } else { self.state().stats.let_go() }
    }

    /// Keeps a file open until no transfer of the tier can read or write memory any more: see
    /// [`Device::keep_open`].
    ///
    /// # Errors
    /// The system's error.
    pub fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
        self.device.keep_open(file)
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }
}

impl<D: Device> Drop for DiskTier<D> {
    /// Writes a checkpoint, unless the thread panics: the values are durable then, and none is
    /// unverified when the file is opened again.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.last_checkpoint();
        }
    }
}

impl DiskTier<FileDevice> {
    /// Registers the memory of a pool with the rings of the tier's file: see
    /// [`FileDevice::register_memory`].
    ///
    /// # Errors
    /// [`FixedBuffersError`]: the memory of this pool is transferred as before.
    pub fn register_memory(&self, pool: &Pool) -> Result<(), FixedBuffersError> {
        self.device.register_memory(pool)
    }

    /// Deregisters the memory of a pool. Does nothing if it is not registered.
    pub fn deregister_memory(&self, pool: &Pool) {
        self.device.deregister_memory(pool);
    }

    /// Registers the memory of a region with the rings of the tier's file: see
    /// [`FileDevice::register_region`].
    ///
    /// # Errors
    /// [`FixedBuffersError`]: the memory of this region is transferred as before.
    pub fn register_region(&self, region: &Arc<Region>) -> Result<(), FixedBuffersError> {
        self.device.register_region(region)
    }

    /// Deregisters the memory of a region. Does nothing if it is not registered.
    pub fn deregister_region(&self, region: &Region) {
        self.device.deregister_region(region);
    }
}

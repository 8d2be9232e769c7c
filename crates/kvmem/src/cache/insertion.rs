//! *Insertion*: reserves space for a value, writes it, and commits it.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use super::index::ValueSpace;
use super::{KvCache, KvCacheError, Reservation};
use crate::tier::TierHints;

impl<K: Hash + Eq> KvCache<K> {
    /// Copies `value` into a block and inserts it under `key`, replacing the value of the key if it
    /// has one. Evicts until it fits.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    pub fn insert(&self, key: K, value: &[u8]) -> Result<(), KvCacheError> {
        self.insert_filled(key, value.len(), |bytes| bytes.copy_from_slice(value))
    }

    /// Inserts as [`insert`](Self::insert) does, with hints about the worth of the value: see
    /// [`Reservation::set_hints`].
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    pub fn insert_with(&self, key: K, value: &[u8], hints: TierHints) -> Result<(), KvCacheError> {
        self.insert_batch([(key, value, hints)])
    }

    /// Inserts several values with the hints of each, all of them or none. Space for all of them is
    /// reserved before the first is committed. Of several values of one key the last one stays.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve). No value is inserted then, but others may have
    /// been evicted.
    pub fn insert_batch<'a>(
        &self,
        values: impl IntoIterator<Item = (K, &'a [u8], TierHints)>,
    ) -> Result<(), KvCacheError> {
        let reserve = |(key, value, hints): (K, &[u8], TierHints)| {
            let (hash, room) = self.room(key, value.len())?;
            let written = room.written(|entry| {
                entry.set_hints(hints);
                entry.bytes_mut().copy_from_slice(value);
            });
            Ok((hash, written))
        };
        let written = values.into_iter().map(reserve).collect::<Result<Vec<_>, KvCacheError>>()?;
        let are_put = written.into_iter().all(|(hash, value)| self.inner.commit(hash, value));
        if are_put { Ok(()) } else { Err(KvCacheError::Forked) }
    }

    /// Inserts a value of `len` bytes that `fill` writes in place. No lock is held while `fill`
    /// runs.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    pub fn insert_filled(
        &self,
        key: K,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), KvCacheError> {
        let (hash, room) = self.room(key, len)?;
        let written = room.written(|entry| fill(entry.bytes_mut()));
        if self.inner.commit(hash, written) { Ok(()) } else { Err(KvCacheError::Forked) }
    }

    /// Reserves space for a value of `len` bytes, to be written in place and then
    /// [committed](Reservation::commit). Evicts until it fits: first the value that `key` has, then
    /// the blocks that the policy chooses. Pinned values and values being written stay.
    ///
    /// O(1) for each evicted block and for each pinned block on the way, if the policy's calls are.
    ///
    /// # Errors
    /// [`TooLarge`](KvCacheError::TooLarge) if it can never fit, for which nothing is evicted;
    /// [`NothingToEvict`](KvCacheError::NothingToEvict) if every block was pinned or being written,
    /// and nothing new was committed meanwhile; [`Forked`](KvCacheError::Forked) in a forked child;
    /// [`WrongLength`](KvCacheError::WrongLength) if a [function that
    /// allocates](super::KvCacheBuilder::with_allocator) returns a block of the wrong length.
    ///
    /// # Panics
    /// Panics if code of the caller panics: a key's `Hash`, `Eq` or `Drop`, a
    /// [`EvictionPolicy`](super::EvictionPolicy), an eviction callback. The cache stays whole.
    pub fn reserve(&self, key: K, len: usize) -> Result<Reservation<K>, KvCacheError> {
        let (hash, room) = self.room(key, len)?;
        let held = room.written(|_| ()).place();
        Ok(Reservation::new(Arc::clone(&self.inner), hash, held))
    }

    /// Returns the hash of a key, and charged space for a value under it. The space does not keep
    /// the cache alive: threads share the count of references to the cache.
    fn room(&self, key: K, len: usize) -> Result<(u64, ValueSpace<'_, K>), KvCacheError> {
        let process = self.inner.process;
        if process.is_forked() {
            return Err(KvCacheError::Forked);
        }
        let hash = self.inner.hasher.hash_one(&key);
        let room = self.inner.allocate_charged(hash, key, len)?;
        // A sink may have forked. Then the block has no memory here.
        if process.is_forked() { Err(KvCacheError::Forked) } else { Ok((hash, room)) }
    }
}

//! *Namespaces*: made with the first value that is stored in them, and forgotten by a call.
//!
//! The superblock has the seed of each namespace, and both copies are written and synced before the
//! first value of a new one is. To forget a namespace is to write both without its seed: from then
//! on, its keys cannot be derived again.

use std::sync::{PoisonError, RwLockReadGuard};

use kvmem_encoding::{EncodeError, Namespace};

use super::error::{StoreError, TierError};
use super::journal::Journal;
use super::tier::DiskTier;
use crate::device::Device;
use crate::format::{BLOCK, Digest, Entry, MAX_NAMESPACES, Namespaces, Superblock};

impl<D: Device> DiskTier<D> {
    /// Returns whether the tier was opened with keys: all its values are encrypted.
    pub(crate) fn encrypts(&self) -> bool {
        self.encoding.encrypts()
    }

    pub(super) fn namespaces(&self) -> RwLockReadGuard<'_, Namespaces> {
        self.namespaces.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the identity of a namespace.
    fn namespace_id(&self, name: &[u8]) -> [u8; 16] {
        let Digest(id) = self.digest(&[b"namespace ", name].concat());
        id
    }

    /// Returns the namespace with a name, and its number. Makes it if there is none, durably.
    pub(super) fn namespace(&self, name: &[u8]) -> Result<(u16, Namespace), StoreError> {
        let id = self.namespace_id(name);
        let find = |all: &Namespaces| {
            let number = all.number_of(&id)?;
            Some((number, all.get(number)?))
        };
        if let Some(found) = find(&self.namespaces()) {
            return Ok(found);
        }
        let mut journal = self.journal();
        self.usable()?;
        // Another thread may have made it.
        let mut namespaces = journal.superblock.namespaces.clone();
        if let Some(found) = find(&namespaces) {
            return Ok(found);
        }
        let namespace = Namespace::new(id).ok_or(EncodeError::Random)?;
        let too_many = StoreError::TooManyNamespaces { limit: MAX_NAMESPACES };
        let number = namespaces.add(namespace).ok_or(too_many)?;
        self.write_namespaces(&mut journal, namespaces)?;
        Ok((number, namespace))
    }

    /// Forgets the keys of a namespace, durably, and removes its values; returns how many these
    /// were. No copy of their bytes can be decrypted any more, except with a copy of the file's
    /// superblock from before. Values that are stored in it later have new keys. O(values).
    ///
    /// # Errors
    /// [`TierError`]: the seed may still be in the file. A failed journal that begins anew writes
    /// the superblocks without it.
    pub fn forget_namespace(&self, name: &[u8]) -> Result<usize, TierError> {
        self.owned()?;
        self.begin_anew();
        let id = self.namespace_id(name);
        let number = {
            let mut journal = self.journal();
            self.usable()?;
            let mut namespaces = journal.superblock.namespaces.clone();
            let Some((number, namespace)) = namespaces.remove(&id) else { return Ok(0) };
            self.encoding.forget(&namespace);
            self.write_namespaces(&mut journal, namespaces)?;
            number
        };
        let (removed, position) = {
            let mut state = self.state();
            let is_of = |entry: &Entry| entry.encoded.is_some_and(|it| it.namespace() == number);
            let of_namespace = state.index.entries().filter(is_of);
            let digests: Vec<Digest> = of_namespace.map(|entry| entry.digest).collect();
            let removed = digests.iter().filter(|digest| state.remove(digest)).count();
            (removed, state.position())
        };
        self.flush(position)?;
        Ok(removed)
    }

    /// Writes both superblocks with these namespaces.
    fn write_namespaces(
        &self,
        journal: &mut Journal,
        namespaces: Namespaces,
    ) -> Result<(), TierError> {
        self.check_owner(&journal.superblock)?;
        let old = journal.superblock.clone();
        // Set first: if a write fails, the superblocks of the journal that begins anew have them.
        journal.superblock = Superblock {
            generation: old.generation + 1,
            // Those that are replaced now are counted as a part of it.
            lifetime_bytes: old.lifetime_bytes.saturating_add(2 * BLOCK as u64),
            namespaces: namespaces.clone(),
            ..old
        };
        *self.namespaces.write().unwrap_or_else(PoisonError::into_inner) = namespaces;
        let written = self.write_superblocks(&journal.superblock);
        // A copy that was not written may still have a seed.
        let written = written.and_then(|failed| failed.map_or(Ok(()), Err));
        self.held(written)
    }
}

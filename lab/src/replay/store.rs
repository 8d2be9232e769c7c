//! *Store*: objects under their ids, as a replay uses them. There are two stores.
//!
//! - [`Pooled`](super::pooled::Pooled): a [`KvCache`](kvmem::cache::KvCache) on a pool, as a server
//!   embeds it.
//! - [`Placed`](super::placed::Placed): the same cache as index, while another allocator places the
//!   objects.

use std::ops::Range;

use kvmem::cache::KvCacheError;
use kvmem::pool::Block;

use super::placed::OutsidePool;
use super::tiered::TierUseFigures;
use kvmem_cli::workload::object::ObjectId;

/// A replay cannot go on.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Not even one block fits the empty pool.
    #[error(
        "the pool is too small: a block of {objects} objects, {bytes} bytes, does not fit it even \
         when empty"
    )]
    PoolTooSmall {
        /// Objects of a block.
        objects: usize,
        /// Bytes of a block.
        bytes: u64,
    },
    /// An object does not hold what was written to it.
    #[error(
        "object {} of block {} was overwritten: its checksum is {found:#010x}, it was written \
         with {written:#010x}",
        .object.number, .object.block
    )]
    Mismatch {
        /// The object that differs.
        object: ObjectId,
        /// The checksum of the written bytes.
        written: u32,
        /// The checksum of the bytes found.
        found: u32,
    },
    /// The allocator returned a range outside the pool.
    #[error(transparent)]
    OutsidePool(#[from] OutsidePool),
    /// The cache failed for a reason that evicting cannot mend.
    #[error("the cache failed: {0}")]
    Cache(KvCacheError),
}

/// Objects under their ids. A store evicts by its policy when it needs space, but never an object
/// that is pinned or being written.
pub trait Store {
    /// A pinned object: it is not evicted while this exists.
    type Pin;
    /// Space for an object that is not yet in the index.
    type Room;

    /// Pins the object, if it is held; this counts as a use.
    fn get(&self, id: ObjectId) -> Option<Self::Pin>;

    /// Starts to fetch what look-ups of these objects read. A hint.
    fn prefetch(&self, _ids: &[ObjectId]) {}

    /// Fetches what a tier below has of these blocks, up to the first one that is not held whole,
    /// and pins it in `pins`, after the first `held` blocks, which are held. A block has `objects`
    /// objects.
    fn fetch(&self, _blocks: &[u64], _held: usize, _objects: u32, _pins: &mut Vec<Self::Pin>) {}

    /// Returns the figures of the tier below, if there is one.
    fn tier(&self) -> Option<TierUseFigures> {
        None
    }

    /// Whether the object is held; this does not count as a use.
    fn holds(&self, id: ObjectId) -> bool;

    /// Reserves `size` bytes for an object with `depth` blocks of its prefix before it; `None` if
    /// all that is held is pinned or being written.
    ///
    /// # Errors
    /// [`StoreError`].
    fn reserve(
        &self,
        id: ObjectId,
        size: u64,
        depth: u32,
    ) -> Result<Option<Self::Room>, StoreError>;

    /// Calls `fill` with the reserved bytes.
    ///
    /// # Errors
    /// [`StoreError::OutsidePool`].
    fn write(&self, room: &mut Self::Room, fill: impl FnOnce(&mut [u8])) -> Result<(), StoreError>;

    /// Inserts the written object under its id.
    fn commit(&self, room: Self::Room) -> Self::Pin;

    /// Calls `look` with the bytes of the object.
    ///
    /// # Errors
    /// [`StoreError::OutsidePool`].
    fn read<T>(&self, pin: &Self::Pin, look: impl FnOnce(&[u8]) -> T) -> Result<T, StoreError>;

    /// Returns the offset of the object.
    fn offset(&self, pin: &Self::Pin) -> u64;

    /// Returns the number of objects held or being written.
    fn objects(&self) -> u64;

    /// Returns their requested bytes, without the overhead of the allocator.
    fn bytes(&self) -> u64;

    /// Returns the number of evicted objects.
    fn evictions(&self) -> u64;

    /// Adds the ranges in use to `spans`, in any order; false if they are unknown.
    fn spans(&self, spans: &mut Vec<Range<u64>>) -> bool;

    /// Returns the bytes of the allocator's metadata, if it reports them.
    fn metadata_bytes(&self) -> Option<u64>;

    /// Returns all of the memory in one block, after every object was dropped; `None` without
    /// memory.
    fn into_memory(self) -> Option<Block>;
}

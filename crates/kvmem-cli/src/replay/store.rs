//! *Store*: objects under their ids, as a replay sees them; there are two.
//!
//! - [`Pooled`](super::pooled::Pooled): a [`KvCache`](kvmem::pool::KvCache) on a pool, as a server
//!   embeds it.
//! - [`Placed`](super::placed::Placed): the same cache as index, while another allocator places the
//!   objects.

use std::ops::Range;

use kvmem::pool::Block;
use kvmem::pool::kv_cache::KvCacheError;

use super::object::ObjectId;
use super::placed::OutsidePool;

/// What stops a replay.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Not even one block fits the empty pool.
    #[error(
        "the pool is too small: a block of {objects} objects, {bytes} bytes, does not fit it even when empty"
    )]
    PoolTooSmall {
        /// Objects of a block.
        objects: usize,
        /// Bytes of a block.
        bytes: u64,
    },
    /// An object does not hold what was written to it.
    #[error(
        "object {} of block {} was overwritten: its checksum is {found:#010x}, it was written with {written:#010x}",
        .object.number, .object.block
    )]
    Mismatch {
        /// The object.
        object: ObjectId,
        /// The checksum of what was written.
        written: u32,
        /// The checksum of what is there.
        found: u32,
    },
    /// The allocator handed out what is not in the pool.
    #[error(transparent)]
    OutsidePool(#[from] OutsidePool),
    /// The cache refused for a reason that evicting does not mend.
    #[error("the cache refused: {0}")]
    Cache(KvCacheError),
}

/// Objects under their ids. When room is needed it evicts what its policy says, but nothing that is
/// pinned or being written.
pub trait Store {
    /// An object that is held. It is not evicted while this exists.
    type Pin;
    /// Room for an object that nobody finds yet.
    type Room;

    /// The object, if it is held; it counts as used.
    fn get(&self, id: ObjectId) -> Option<Self::Pin>;

    /// Whether the object is held; it does not count as used.
    fn holds(&self, id: ObjectId) -> bool;

    /// Room for an object of `size` bytes, before which `depth` blocks of its prefix come; `None` if
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

    /// Lets `fill` write to the room.
    ///
    /// # Errors
    /// [`StoreError::OutsidePool`].
    fn write(&self, room: &mut Self::Room, fill: impl FnOnce(&mut [u8])) -> Result<(), StoreError>;

    /// Puts what was written in under its id.
    fn commit(&self, room: Self::Room) -> Self::Pin;

    /// Lets `look` read the object.
    ///
    /// # Errors
    /// [`StoreError::OutsidePool`].
    fn read<T>(&self, pin: &Self::Pin, look: impl FnOnce(&[u8]) -> T) -> Result<T, StoreError>;

    /// Where the object begins.
    fn offset(&self, pin: &Self::Pin) -> u64;

    /// Objects held, those being written included.
    fn objects(&self) -> u64;

    /// Bytes of those: requested sizes, whatever the allocator spends on them.
    fn bytes(&self) -> u64;

    /// Objects that were evicted.
    fn evictions(&self) -> u64;

    /// Puts what is in use into `spans`, in no order; false if it is not known.
    fn spans(&self, spans: &mut Vec<Range<u64>>) -> bool;

    /// Bytes of metadata that the allocator holds, where it tells.
    fn metadata_bytes(&self) -> Option<u64>;

    /// All of the memory in one block, once nothing is held any more; `None` if there is none.
    fn into_memory(self) -> Option<Block>;
}

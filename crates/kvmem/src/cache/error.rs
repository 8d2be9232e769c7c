//! *Errors*: reasons why inserting a value or making a cache fails.

use thiserror::Error;

use crate::pool::PoolError;
use crate::tier::BoxError;

/// An insertion failed. The value that the cache had under its key may have been evicted, as by any
/// insertion.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum KvCacheError {
    /// The value has no bytes.
    #[error("a value of 0 bytes cannot be cached: request at least 1 byte")]
    Empty,
    /// The value does not fit, however empty the cache and the pool are. Nothing was evicted for
    /// it.
    #[error(
        "a value of {requested} bytes never fits: the limit is {limit} bytes; raise the cache's \
         limit, enlarge the pool or its boundary, or split the value"
    )]
    TooLarge {
        /// Bytes of the value.
        requested: u64,
        /// Length of the longest value that can fit.
        limit: u64,
    },
    /// No block can be evicted: each block of the cache is pinned or being written, and other
    /// blocks occupy the rest of the pool.
    #[error(
        "no space for {requested} bytes: each of the cache's {blocks} blocks ({bytes} bytes) is \
         pinned or being written; drop pins sooner, or give the cache a larger limit or pool"
    )]
    NothingToEvict {
        /// Bytes of the value.
        requested: u64,
        /// Number of blocks in the cache at that moment, including those being written.
        blocks: u64,
        /// Bytes of these blocks.
        bytes: u64,
    },
    /// The pool failed for a reason that evicting does not remove.
    #[error(transparent)]
    Pool(PoolError),
    /// The caller's [way to allocate](super::KvCacheBuilder::with_allocator) returned a block that
    /// does not fit the request. The block was freed.
    #[error(
        "the allocator set with `with_allocator` returned a block of {returned} bytes for a \
         request of {requested}: return a block of {requested} to {limit} bytes, or an error"
    )]
    WrongLength {
        /// Bytes requested.
        requested: u64,
        /// Bytes of the block that was returned.
        returned: u64,
        /// The longest block that is accepted.
        limit: u64,
    },
    /// This process is a forked child, and the cache belongs to its parent. See
    /// [`KvCache::is_forked`](super::KvCache::is_forked).
    #[error(
        "the cache was made before this process was forked, and its memory stays with the parent: \
         make a new pool and a new cache here, or share a pool and attach it"
    )]
    Forked,
}

/// A cache could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KvCacheSetupError {
    /// A limit is 0.
    #[error("a cache with a limit of 0 {of} holds nothing: set a limit of at least 1, or none")]
    ZeroLimit {
        /// "bytes" or "blocks".
        of: &'static str,
    },
    /// The limit of blocks exceeds the number of blocks that slots can name.
    #[error(
        "a limit of {requested} blocks is too high: a cache holds at most {limit}; set a lower \
         limit, or none"
    )]
    TooManyBlocks {
        /// Blocks requested.
        requested: u64,
        /// The maximum.
        limit: u64,
    },
    /// Both `on_evict` and `lower_tier` are set.
    #[error(
        "on_evict and lower_tier are both set, and evicted values go to one of them: set one, or \
         call the function from a tier of your own"
    )]
    TwoSinks,
    /// The number of shards is 0 or too large.
    #[error("a cache cannot have {requested} shards: set 1 to {limit}")]
    Shards {
        /// Shards requested.
        requested: usize,
        /// The maximum.
        limit: usize,
    },
}

/// The lower tier failed to remove values. They are out of memory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LowerTierError {
    /// A value was not removed. Its key is not fetched until the cache is cleared.
    #[error(
        "the lower tier may still have the value that was removed, so its key is not fetched any \
         more: {0}; clear the cache when the tier works again"
    )]
    Remove(#[source] BoxError),
    /// The values were not removed. No key is fetched until the cache is cleared.
    #[error(
        "the lower tier may still have the values that were removed, so no key is fetched any \
         more: {0}; clear the cache again when the tier works"
    )]
    Clear(#[source] BoxError),
}

impl LowerTierError {
    /// Returns the error of the tier.
    #[must_use]
    pub fn tier_error(&self) -> &BoxError {
        match self {
            LowerTierError::Remove(error) | LowerTierError::Clear(error) => error,
        }
    }
}

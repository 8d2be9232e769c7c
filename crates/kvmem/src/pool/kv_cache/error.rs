//! *Errors*: why a value cannot be held, or a cache not be made.

use thiserror::Error;

use crate::pool::PoolError;

/// Why a value could not be put into a cache. What was held under its key may have been evicted, as
/// by any insertion.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum KvCacheError {
    /// A value of no bytes.
    #[error("a value of 0 bytes was to be held: ask for at least 1 byte")]
    Empty,
    /// However empty the cache and the pool are, the value does not fit. Nothing was evicted for
    /// it.
    #[error(
        "a value of {requested} bytes can never be held: at most {limit} bytes can; raise the cache's limit, \
         enlarge the pool or its boundary, or cut the value into parts"
    )]
    TooLarge {
        /// Bytes of the value.
        requested: u64,
        /// The longest value there can be.
        limit: u64,
    },
    /// Nothing is left to evict: what is held is pinned or being written, and the rest of the pool
    /// is in use by others.
    #[error(
        "no room for {requested} bytes: every one of the {blocks} blocks held ({bytes} bytes) is pinned or being \
         written; drop pins sooner, or give the cache a larger limit or pool"
    )]
    NothingToEvict {
        /// Bytes of the value.
        requested: u64,
        /// Blocks held then, those being written included.
        blocks: u64,
        /// Bytes held then, those being written included.
        bytes: u64,
    },
    /// The pool failed for a reason that evicting does not remove.
    #[error(transparent)]
    Pool(PoolError),
    /// The caller's [way to allocate](super::KvCacheBuilder::with_allocator) returned a block that
    /// does not fit the request. The block was freed.
    #[error(
        "a block of {requested} bytes was requested through `allocate_by`, and it returned one of {returned} bytes: return a \
         block of {requested} to {limit} bytes, or an error"
    )]
    WrongLength {
        /// Bytes requested.
        requested: u64,
        /// Bytes of the block that was returned.
        returned: u64,
        /// The longest block that is accepted.
        limit: u64,
    },
    /// This process is a forked child, and the cache is its parent's. See
    /// [`KvCache::is_forked`](super::KvCache::is_forked).
    #[error(
        "the cache was made before this process was forked, and its memory stays with the parent: make a new pool and a new \
         cache here, or share a pool and attach it"
    )]
    Forked,
}

/// Why a cache could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KvCacheSetupError {
    /// A limit of nothing.
    #[error("a cache of at most 0 {of} holds nothing: allow at least 1, or set no limit")]
    ZeroLimit {
        /// "bytes" or "blocks".
        of: &'static str,
    },
    /// More blocks than can be named.
    #[error(
        "at most {limit} blocks can be held, {requested} were asked for: set a lower limit, or none"
    )]
    TooManyBlocks {
        /// Blocks asked for.
        requested: u64,
        /// The most there can be.
        limit: u64,
    },
    /// The marks are in the wrong order.
    #[error(
        "watermarks must be low ≤ high ≤ the limit of bytes; they are {low} and {high}, the limit is {limit}"
    )]
    Watermarks {
        /// Bytes to evict down to.
        low: u64,
        /// Bytes above which that is done.
        high: u64,
        /// The limit of bytes: the cache's own, or the pool's capacity.
        limit: u64,
    },
    /// A number of shards that is of no use.
    #[error("a cache of {requested} shards is of no use: ask for 1 to {limit}")]
    Shards {
        /// Shards asked for.
        requested: usize,
        /// The most there can be.
        limit: usize,
    },
}

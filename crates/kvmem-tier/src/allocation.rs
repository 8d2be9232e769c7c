//! *Allocation*: where a cache above a tier puts its values.

use kvmem::pool::{Block, Pool, PoolError};

use crate::format::BLOCK;

/// Values of this length and more begin at a multiple of the block.
const MIN_ALIGNED: usize = 16 * BLOCK;

/// Allocates memory for a value of a cache above a tier, for
/// [`with_allocator`](kvmem::cache::KvCacheBuilder::with_allocator). A value of 64 KiB or
/// more begins at a multiple of 4096 bytes, where the device transfers it in place; at most a 16th
/// of the memory is lost by that. Shorter values are copied, and begin anywhere.
///
/// # Errors
/// The errors of [`Pool::allocate`].
///
/// ```
/// use kvmem::arena::PageSize;
/// use kvmem::cache::KvCache;
/// use kvmem::pool::Pool;
///
/// let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build()?;
/// let cache: KvCache<u64> =
///     KvCache::builder(&pool).with_allocator(kvmem_tier::allocate).build()?;
/// cache.insert(1, &[1; 100])?;
/// cache.insert(2, &[2; 100_000])?;
/// let long = cache.get(&2).expect("it was inserted");
/// assert!(long.block().offset().is_multiple_of(4096));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn allocate(pool: &Pool, len: usize) -> Result<Block, PoolError> {
    if len < MIN_ALIGNED { pool.allocate(len) } else { pool.allocate_aligned(len, BLOCK) }
}

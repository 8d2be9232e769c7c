//! *Backing*: the memory of the pool: resident, or addresses alone.
//!
//! A replay that writes nothing uses an ordinary pool whose pages are never touched: it costs no
//! memory, however large it is. A backed pool is made resident first, after a check that the
//! machine has as much memory.

use kvmem::arena::{PageSize, Populate};
use kvmem::pool::{Block, Pool, PoolError};
use kvmem_bench::limits::available_bytes;

/// A pool cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackingError {
    /// The machine, or the control group, has less memory than the pool would fill.
    #[error(
        "--backed fills the whole pool: {pool_bytes} bytes, but only {available_bytes} bytes of \
         memory are available; \
         choose a smaller --pool"
    )]
    NotEnough {
        /// The requested size of the pool.
        pool_bytes: u64,
        /// Bytes that are available.
        available_bytes: u64,
    },
    /// The pool could not be built.
    #[error("cannot make a pool of {pool_bytes} bytes: {source}")]
    Pool {
        /// The requested size of the pool.
        pool_bytes: u64,
        /// The error of the pool.
        source: Box<PoolError>,
    },
}

/// A thread times one call in this many, for the metrics.
const LATENCY_ONE_IN: u32 = 128;

/// Builds a pool of `pool_bytes`, rounded up to whole pages, resident if it is `backed`. With
/// `learn`, threads learn hot sizes and cache them.
///
/// # Errors
/// [`BackingError`] if less memory is available, or the pool cannot be built.
pub fn pool(pool_bytes: u64, backed: bool, learn: bool) -> Result<Pool, BackingError> {
    if backed
        && let Some(available_bytes) = available_bytes()
        && pool_bytes > available_bytes
    {
        return Err(BackingError::NotEnough { pool_bytes, available_bytes });
    }
    let mut builder =
        Pool::builder(usize::try_from(pool_bytes).unwrap_or(usize::MAX)).auto_hot_sizes(learn);
    builder = builder.name("replay").measure_latency(LATENCY_ONE_IN);
    if !backed {
        builder = builder.ladder(PageSize::Base).populate(Populate::None);
    }

    builder.build().map_err(|source| failure(pool_bytes, source))
}

/// Allocates `pool_bytes` in one block.
///
/// # Errors
/// [`BackingError`] if less memory is available, or the pool cannot be built.
pub fn memory(pool_bytes: u64) -> Result<Block, BackingError> {
    let whole = usize::try_from(pool_bytes).unwrap_or(usize::MAX);
    pool(pool_bytes, true, false)?.allocate(whole).map_err(|source| failure(pool_bytes, source))
}

fn failure(pool_bytes: u64, source: PoolError) -> BackingError {
    BackingError::Pool { pool_bytes, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_cost_no_memory() {
        let pool = pool(1 << 40, false, true).expect("a tebibyte of addresses");
        assert_eq!(pool.capacity(), 1 << 40);
        assert!(pool.allocate(1 << 39).is_ok());
    }

    #[test]
    fn more_than_the_machine_has_fails_with_both_figures() {
        let Some(available) = available_bytes() else { return };
        let pool_bytes = available.saturating_mul(2).max(1 << 50);
        let error =
            pool(pool_bytes, true, true).expect_err("so much memory cannot be mapped").to_string();
        assert!(error.contains(&pool_bytes.to_string()), "{error}");
    }
}

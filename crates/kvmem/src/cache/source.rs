//! *Source*: how a cache allocates blocks from its pool.

use std::sync::Arc;

use crate::pool::{Block, Pool, PoolError};

/// The caller's function that allocates a block.
type Allocate = dyn Fn(&Pool, usize) -> Result<Block, PoolError> + Send + Sync;

/// Allocates blocks by [`Pool::allocate`], without a virtual call, or by the caller's function.
#[derive(Clone)]
pub(super) enum Source {
    Pool,
    By(Arc<Allocate>),
}

impl Source {
    #[inline]
    pub(super) fn allocate(&self, pool: &Pool, len: usize) -> Result<Block, PoolError> {
        match self {
            Source::Pool => pool.allocate(len),
            Source::By(allocate) => allocate(pool, len),
        }
    }
}

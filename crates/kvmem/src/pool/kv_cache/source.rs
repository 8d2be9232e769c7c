//! *Source*: how a cache asks its pool for a block.

use std::sync::Arc;

use crate::pool::{Block, Pool, PoolError};

/// A way of the caller's.
type Allocate = dyn Fn(&Pool, usize) -> Result<Block, PoolError> + Send + Sync;

/// In the usual way, which is not called through a table, or in another.
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

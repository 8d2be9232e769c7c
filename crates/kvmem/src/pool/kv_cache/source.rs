//! *Source*: how a cache asks its pool for a block.

use std::sync::Arc;

use crate::pool::{Block, Pool, PoolError};

/// The answer to one request.
type Answer = Result<Block, PoolError>;

/// In the usual way, which is not called through a table, or in another.
#[derive(Clone)]
pub(super) enum Source {
    Pool,
    By(Arc<dyn Fn(&Pool, usize) -> Answer + Send + Sync>),
}

impl Source {
    #[inline]
    pub(super) fn allocate(&self, pool: &Pool, len: usize) -> Answer {
        match self {
            Source::Pool => pool.allocate(len),
            Source::By(allocate) => allocate(pool, len),
        }
    }
}

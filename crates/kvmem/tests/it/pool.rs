//! The pool: all layers as one thing.

mod kv_cache;
mod lifetimes;

use kvmem::arena::PageSize;
use kvmem::pool::{Pool, PoolBuilder};

const MIB: usize = 1 << 20;

/// A pool of base pages, which are there on every machine.
fn small(bytes: usize) -> PoolBuilder {
    Pool::builder(bytes).ladder(PageSize::Base)
}

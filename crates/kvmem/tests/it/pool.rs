//! The pool: all layers as one thing.

mod background;
mod blocks;
mod kv_cache;
mod lifetimes;
mod metrics;
mod quarantine;
mod registered;
mod resize;
mod shared;

use crate::register::fake;
use kvmem::arena::PageSize;
use kvmem::pool::{Pool, PoolBuilder};

const MIB: usize = 1 << 20;

/// A pool of base pages, which are there on every machine.
fn small(bytes: usize) -> PoolBuilder {
    Pool::builder(bytes).ladder(PageSize::Base)
}

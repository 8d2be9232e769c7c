//! The pool: all layers together.

mod background;
mod blocks;
mod init_on;
mod lifetimes;
mod metrics;
mod overlap;
mod quarantine;
mod registered;
mod resize;
mod shared;
mod soak;

use crate::register::fake;
use kvmem::arena::PageSize;
use kvmem::pool::{Pool, PoolBuilder};

const MIB: usize = 1 << 20;

/// Returns a builder of a pool of base pages, which every machine has.
fn small(bytes: usize) -> PoolBuilder {
    Pool::builder(bytes).ladder(PageSize::Base)
}

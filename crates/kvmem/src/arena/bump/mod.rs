//! *Bump allocation*: hands out the bytes of one memory from the first to the last.

mod arena;
mod cursor;
mod error;
mod lanes;
mod memory;
#[cfg(all(test, loom, not(shuttle)))]
mod models;

pub use arena::{BumpArena, BumpStats};
pub use error::BumpError;
pub use memory::{Exclusive, ExclusiveRegion, HeapMemory, Memory};

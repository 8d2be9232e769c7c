#![doc = include_str!("../../docs/pool.md")]

mod block;
mod build;
mod builder;
mod cut;
mod error;
mod fitter;
pub mod kv_cache;
mod memory;
pub mod observe;
mod owner;
#[allow(clippy::module_inception)]
mod pool;
mod raw;
mod readying;
mod report;
mod resize;
mod shared;
mod size;
mod sub_block;

pub use block::Block;
pub use builder::PoolBuilder;
pub use error::PoolError;
pub use kv_cache::KvCache;
pub use pool::Pool;
pub use report::{Cause, Choice, PoolReport, Quarantined, Step};
pub use resize::Shrunk;
pub use shared::{Access, AttachedPool, BlockRef};
pub use size::PoolSize;
pub use sub_block::{SubBlock, SubBlockMut};

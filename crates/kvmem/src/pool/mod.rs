#![doc = include_str!("../../docs/pool.md")]

mod block;
mod build;
mod builder;
mod error;
pub mod kv_cache;
mod memory;
pub mod observe;
mod owner;
mod partition;
#[allow(clippy::module_inception)]
mod pool;
mod provisioner;
mod provisioning;
mod raw;
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
pub use report::{Cause, PoolReport, Quarantined, ReportedChoice, Step};
pub use resize::Shrunk;
pub use shared::{Access, AttachedPool, BlockRef};
pub use size::PoolSize;
pub use sub_block::{SubBlock, SubBlockMut};

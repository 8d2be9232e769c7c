#![doc = include_str!("../../docs/pool.md")]

mod block;
mod builder;
mod error;
pub mod kv_cache;
mod memory;
#[allow(clippy::module_inception)]
mod pool;
mod report;
mod size;

pub use block::Block;
pub use builder::PoolBuilder;
pub use error::PoolError;
pub use kv_cache::KvCache;
pub use pool::Pool;
pub use report::PoolReport;
pub use size::PoolSize;

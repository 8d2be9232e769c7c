#![doc = include_str!("../../docs/pool.md")]

mod blocks;
mod error;
#[cfg(feature = "metrics")]
mod export;
mod figures;
pub mod observe;
mod owner;
#[allow(clippy::module_inception)]
mod pool;
mod provision;
mod raw;
mod report;
mod resize;
mod setup;
mod shared;
mod size;

pub use blocks::{Block, BlockRef, InitOn, SubBlock, SubBlockMut};
pub use error::PoolError;
pub use pool::Pool;
pub use report::{Cause, PoolReport, Quarantined, ReportedChoice, Step};
pub use resize::Shrunk;
pub use setup::PoolBuilder;
pub use shared::{Access, AttachedPool};
pub use size::PoolSize;

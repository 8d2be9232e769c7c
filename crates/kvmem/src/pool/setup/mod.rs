//! *Setup*: turns options into a pool.

mod build;
mod builder;
mod partition;

pub use builder::PoolBuilder;

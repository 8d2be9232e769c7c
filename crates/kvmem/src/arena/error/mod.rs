//! *Errors*: why an operation on memory failed, and the limit behind it.

mod arena_error;
mod diagnose;

pub(super) use diagnose::{call_failed, limit_behind, meminfo};

pub use arena_error::{ArenaError, Limit};

//! *Errors*: why an operation on memory failed, and the limit behind it.

mod arena_error;
mod diagnose;
mod limit;

pub(super) use diagnose::{call_failed, limit_behind, no_pages};

pub use arena_error::ArenaError;
pub use limit::Limit;

//! *State*: the part of a cache that all its clones share.

mod sink;
mod space;

pub use sink::EvictionOutcome;

pub(super) use sink::EvictionSink;
pub(super) use space::{Inner, Spread, Turn};

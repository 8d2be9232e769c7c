//! The lanes alone, for the model check in `tests/loom`: the rest of the layer calls the kernel,
//! which loom cannot model.

#[path = "lanes.rs"]
mod lanes;

pub use lanes::{ChunkTurn, Lanes};

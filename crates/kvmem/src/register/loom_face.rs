//! The lanes alone, for the model check in `tests/loom`: the rest of the layer calls the kernel,
//! which loom cannot model.

#[path = "engine/lanes.rs"]
mod lanes;

pub use lanes::{ChunkTurn, Lanes};

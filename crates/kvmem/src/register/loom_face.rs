//! The lanes alone, for the model check in `tests/loom`: the rest of the layer stands on the
//! kernel, of which loom has no model.

#[path = "lanes.rs"]
mod lanes;

pub use lanes::{Lanes, Turn};

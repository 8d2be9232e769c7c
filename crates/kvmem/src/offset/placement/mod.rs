//! Placement: which hole a request is cut from, and from which end.

mod policy;
mod renewal;

pub use policy::Placement;
pub(crate) use policy::{HoleEnd, PlacementPolicy};

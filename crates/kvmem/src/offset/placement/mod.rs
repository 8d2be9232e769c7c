//! Placement: which hole a request is cut from, and from which end.
//!
//! The [policy] weighs holes by their [renewal] value, the bytes of current traffic that they are
//! expected to absorb. It learns the traffic from the [recent sizes](recent_sizes).

mod equation;
#[allow(clippy::module_inception)]
mod placement;
mod policy;
mod recent_sizes;
mod renewal;
mod slot_length;
mod traffic;

pub(crate) use placement::HoleEnd;
pub use placement::Placement;
pub(crate) use policy::PlacementPolicy;

//! *Populating*: makes pages resident within all limits, and measures which pages are.

mod collapse;
mod headroom;
mod lockers;
#[allow(clippy::module_inception)]
mod populate;
mod populate_mode;
mod range;
mod reservations;
mod residency;
mod touch;

pub(super) use collapse::collapse;
pub(crate) use headroom::{headroom, reserve as reserve_headroom};
pub(super) use populate::populate;
pub(super) use range::PopulateRange;
pub(super) use residency::{glance, measure};

#[doc(hidden)]
pub use headroom::{MemoryLeft, MemoryWatch};
pub use populate_mode::{ParsePopulateError, Populate, Populated};
pub use residency::{Method, Residency};

//! *Populating*: makes pages resident within all limits, and measures which pages are.

mod collapse;
mod headroom;
#[allow(clippy::module_inception)]
mod populate;
mod reservations;
mod residency;

pub(super) use collapse::collapse;
pub(crate) use headroom::{headroom, reserve as reserve_headroom};
pub(super) use populate::{PopulateRange, populate};
pub(super) use residency::{glance, measure};

pub use populate::{ParsePopulateError, Populate, Populated};
pub use residency::{Method, Residency};

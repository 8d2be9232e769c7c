//! *Slab*: small objects and hot sizes, cached per thread in magazines.

// What stands on the magazines uses a part of them.
#![allow(dead_code)]

mod clock;
mod core;
mod depot;
mod local;
#[cfg(loom)]
#[doc(hidden)]
pub mod loom_face;
mod magazine;
#[cfg(not(loom))]
mod magazines;
mod owner;
mod settings;
mod source;
mod stats;
#[cfg(not(loom))]
mod threads;

#[cfg(all(test, not(loom)))]
mod tests;

pub use clock::{Clock, ManualClock, SystemClock};

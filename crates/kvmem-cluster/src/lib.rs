#![doc = include_str!("../docs/cluster.md")]

mod helper;
mod messages;
mod object;
pub mod observe;
mod options;
mod program;
mod socket;
mod stats;
mod tier;
mod trailer;

pub use kvmem_encoding::{Codec, Keyring};
pub use options::ClusterOptions;
pub use program::hide_service_manager;
pub use stats::ClusterStats;
pub use tier::ClusterTier;

/// The example on the page of the package, which must compile like any other.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackagePage;

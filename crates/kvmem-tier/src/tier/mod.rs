//! *Tier*: values on a device, under keys.

mod admission;
mod error;
mod journal;
mod open;
mod options;
mod state;
mod stats;
#[allow(clippy::module_inception)]
mod tier;

pub use admission::Admission;
pub use error::{StoreError, TierError};
pub use open::OpenReport;
pub use options::{TierOptions, Verify};
pub use stats::TierStats;
pub use tier::{DiskTier, Fetch, Fetched};

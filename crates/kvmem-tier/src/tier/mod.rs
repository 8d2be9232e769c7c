//! *Tier*: values on a device, under keys.

mod admission;
mod error;
mod found;
mod inspection;
mod journal;
mod open;
mod options;
mod state;
mod stats;
#[allow(clippy::module_inception)]
mod tier;
mod verification;

pub use admission::Admission;
pub use error::{StoreError, TierError};
pub use inspection::{Contents, Inspection, ValueLengths, inspect};
pub use open::OpenReport;
pub use options::{TierOptions, Verify};
pub use stats::TierStats;
pub use tier::{DiskTier, Fetch, Fetched};
pub use verification::{Damage, DamagedValue, verify};

//! *Tier*: values on a device, under keys.

mod admission;
mod blank;
mod bounce;
mod checkpoint;
mod checksum;
mod encoded;
mod error;
mod fetch;
mod fetched;
mod found;
mod inspection;
mod journal;
mod journal_reader;
mod namespaces;
mod open;
mod options;
mod origins;
mod ownership;
mod partial;
mod repair;
mod resize;
mod state;
mod stats;
mod store;
mod stored;
mod suspects;
#[allow(clippy::module_inception)]
mod tier;
mod verification;

pub use admission::{Admission, AdmissionPolicy};
pub use error::{StoreError, TierError};
pub use fetched::Fetched;
pub use inspection::{Contents, DiskTierInspection, Inspection, ValueLengths, inspect, key_ids};
pub use open::OpenReport;
pub use options::{DiskTierOptions, EvictionOrder, Verify};
pub use repair::RepairReport;
pub use stats::TierStats;
pub use tier::DiskTier;
pub use verification::{Damage, DamagedValue, verify, verify_with_keys};

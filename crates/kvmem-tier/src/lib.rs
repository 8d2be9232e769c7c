#![doc = include_str!("../docs/tier.md")]

mod crc;
pub mod device;
pub mod format;
mod index;
mod lower_tier;
mod process;
mod tier;

pub use lower_tier::TierKey;
pub use tier::{
    Admission, Contents, Damage, DamagedValue, DiskTier, Fetch, Fetched, Inspection, OpenReport,
    StoreError, TierError, TierOptions, TierStats, ValueLengths, Verify, inspect, verify,
};

/// The example on the page of the package, which must compile like any other.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackagePage;

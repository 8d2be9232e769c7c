#![doc = include_str!("../docs/tier.md")]

pub mod device;
pub mod format;
mod index;
mod lower_tier;
mod tier;

pub use lower_tier::TierKey;
pub use tier::{
    Admission, DiskTier, Fetch, Fetched, OpenReport, StoreError, TierError, TierOptions, TierStats,
    Verify,
};

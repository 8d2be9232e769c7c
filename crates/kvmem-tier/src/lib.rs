#![doc = include_str!("../docs/tier.md")]

mod allocation;
mod crc;
pub mod device;
pub mod format;
mod index;
mod lower_tier;
pub mod observe;
pub mod preflight;
mod process;
mod side_by_side;
mod tier;
mod tier_set;
mod trace;
mod until;

pub use allocation::allocate;
pub use kvmem_encoding::{Codec, KeyId, Keyring, KeyringError};
pub use tier::{
    Admission, AdmissionPolicy, Contents, Damage, DamagedValue, DiskTier, DiskTierInspection,
    DiskTierOptions, EvictionOrder, Fetched, Inspection, OpenReport, RepairReport, StoreError,
    TierError, TierStats, ValueLengths, Verify, inspect, key_ids, verify, verify_with_keys,
};
pub use tier_set::{TierSet, TierSetError};
pub use until::verify_until;

/// The example on the page of the package, which must compile like any other.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackagePage;

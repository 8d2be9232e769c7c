//! A verified disk tier below a KV cache: values that memory has no room for stay on a local disk,
//! and are there after a restart.
//!
//! - *Exact space.* Values of any length lie in ranges of the file that an
//!   [`OffsetAllocator`](kvmem::offset::OffsetAllocator) places, in blocks of 4 KiB.
//! - *Verified.* Each value has a CRC-32C, which is checked before the caller sees a byte. A
//!   damaged value is a miss.
//! - *Crash-consistent.* A journal and checkpoints keep the index: what was acknowledged is found
//!   after `kill -9`, and after a power cut up to the last sync. [`mod@format`] has the bytes.
//!
//! ```no_run
//! use kvmem_tier::{DiskTier, Fetch, Fetched, TierOptions};
//!
//! let (tier, found) =
//!     DiskTier::open("/nvme/kv".as_ref(), 64 << 30, 32, &TierOptions::default())?;
//! println!("{} values found", found.entries);
//! tier.store(&[(b"key", b"value")]);
//! let mut value = [0; 5];
//! let fetched = tier.fetch(&mut [Fetch { key: b"key", into: &mut value }]);
//! assert_eq!(fetched, [Fetched::Hit]);
//! # Ok::<(), kvmem_tier::TierError>(())
//! ```

pub mod device;
pub mod format;
mod index;
mod tier;

pub use tier::{
    DiskTier, Fetch, Fetched, OpenReport, StoreError, TierError, TierOptions, TierStats, Verify,
};

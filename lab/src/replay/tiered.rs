//! *Tiered*: a disk tier below the cache of a replay, and the time of its fetches.
//!
//! A request that memory cannot serve any further asks the tier: first for its next block alone,
//! whose time is the *time to the first byte*, then for all blocks behind it that the tier has, in
//! one call. The fetched objects stay pinned until the request has ended.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvmem::pool::Pool;
use kvmem::tier::{Tier, TierKey, WriteBehind};
use kvmem_tier::format::BLOCK;
use kvmem_tier::{DiskTier, DiskTierOptions, TierStats};
use serde::Serialize;

use super::key::Key;
use kvmem_cli::workload::latency::{Latency, LatencyFigures};
use kvmem_cli::workload::object::ObjectId;

/// Where evicted objects go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TierPlace {
    /// The file or block device.
    pub path: PathBuf,
    /// Bytes of a new file.
    pub bytes: u64,
}

/// An open tier, and how long it takes to fetch.
pub struct Tiered {
    place: TierPlace,
    tier: Arc<DiskTier>,
    /// Above it evicted objects wait to be written, many at once.
    pub(super) queue: Arc<WriteBehind>,
    /// Values that were there when the tier was opened.
    found: u64,
    times: Mutex<FetchTimes>,
}

/// Latencies of fetches.
#[derive(Default)]
struct FetchTimes {
    /// Of the first block of a request.
    first: Latency,
    /// Of all blocks behind it, together.
    rest: Latency,
}

/// The use of the tier.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TierUseFigures {
    /// The file.
    pub file: String,
    /// Bytes that it has for values.
    pub capacity_bytes: u64,
    /// Objects that were in it before the replay, and at its end.
    pub objects_before: u64,
    /// Objects at the end.
    pub objects: u64,
    /// Objects fetched.
    pub fetched_objects: u64,
    /// Objects written.
    pub stored_objects: u64,
    /// Bytes of values and padding written.
    pub written_bytes: u64,
    /// Bytes of the index written.
    pub metadata_bytes: u64,
    /// Objects evicted from the tier.
    pub evictions: u64,
    /// Fetches whose bytes were not those that were stored, or that the device failed.
    pub damaged_objects: u64,
    /// Latency of fetching the first block of a request.
    pub first_block_ns: LatencyFigures,
    /// Latency of fetching all blocks behind it.
    pub rest_ns: LatencyFigures,
}

impl Tiered {
    /// Opens the tier, and makes it if the file is new: with room in its index for objects of
    /// `least` bytes.
    pub fn open(place: &TierPlace, least: u64, pool: &Pool) -> anyhow::Result<Tiered> {
        let options = DiskTierOptions {
            bytes: Some(place.bytes),
            max_entries: Some(place.bytes / least.next_multiple_of(BLOCK as u64).max(1)),
            ..DiskTierOptions::default()
        };
        let (tier, report) = DiskTier::open(&place.path, &options)?;
        let tier = Arc::new(tier);
        let queue = Arc::new(WriteBehind::builder(pool, tier.clone()).build()?);
        let (found, times) = (report.entries, Mutex::default());
        Ok(Tiered { place: place.clone(), tier, queue, found, times })
    }

    /// Returns whether the tier has an object, or will have it.
    pub(super) fn holds(&self, id: ObjectId) -> bool {
        self.queue.ask(&[&Key(id).key_bytes()])[0].is_some()
    }

    /// Records the time of a fetch: of the first block of a request, or of the rest.
    pub(super) fn record(&self, is_first: bool, took: Duration) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        if is_first { times.first.record(took) } else { times.rest.record(took) }
    }

    /// Returns the figures so far.
    pub fn figures(&self) -> TierUseFigures {
        let TierStats {
            capacity,
            entries,
            hits,
            stored,
            written_bytes,
            metadata_bytes,
            evictions,
            checksum_misses,
            lost_misses,
            io_misses,
            short_misses,
            ..
        } = self.tier.stats();
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        TierUseFigures {
            file: self.place.path.display().to_string(),
            capacity_bytes: capacity,
            objects_before: self.found,
            objects: entries,
            fetched_objects: hits,
            stored_objects: stored,
            written_bytes,
            metadata_bytes,
            evictions,
            damaged_objects: checksum_misses + lost_misses + io_misses + short_misses,
            first_block_ns: times.first.figures(),
            rest_ns: times.rest.figures(),
        }
    }
}

/// Returns the bytes of an object's id: what it is called on the disk.
fn bytes_of(id: ObjectId) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&id.block.to_le_bytes());
    bytes[8..].copy_from_slice(&id.number.to_le_bytes());
    bytes
}

impl TierKey for Key {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Owned(bytes_of(self.0).to_vec())
    }
}

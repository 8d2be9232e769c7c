//! *Disk*: values that memory has no room for go to a disk tier, and are there after it is opened
//! again.
//!
//! A cache of a sixteenth of the pool gets three times as many bytes as it holds. Its tier
//! has room for all, also for those that leave memory again after they were fetched. Then all
//! values are fetched twice: while the tier is open, and after cache and tier were closed and the
//! tier was opened again, as after a restart. Every byte is verified.
//!
//! The tour removes the file's name as soon as it is made, so a tour that is killed leaves nothing.
//! The tier opens it by its descriptor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmem::cache::KvCache;
use kvmem::pool::Pool;
use kvmem_tier::device::Engine;
use kvmem_tier::{DiskTier, DiskTierOptions, TierStats};

use super::printer::{Going, Missing, bytes};
use crate::workload::object::ObjectId;
use crate::workload::payload::Payloads;
use kvmem_trace::escape::shown;

/// Bytes of the cache, as a part of the pool's; and of the tier, as a multiple of the cache's.
const PART_OF_POOL: u64 = 16;
const TIER: u64 = 10;
/// Bytes that are stored, as a multiple of the cache's.
const ROUNDS: u64 = 3;
/// Values that the cache holds, about.
const VALUES: u64 = 64;
const MIN_CACHE: u64 = 4 << 20;
const MIN_VALUE: u64 = 64 << 10;
/// Values of a call.
const BATCH: u64 = 16;
/// A slow drive gets fewer bytes: nothing more is stored after this time.
const LONGEST: Duration = Duration::from_secs(5);

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct OnDisk {
    /// The folder of the file.
    pub(super) folder: PathBuf,
    /// How the file is reached.
    pub(super) access: &'static str,
    /// Bytes of a value, and of the cache.
    pub(super) value_bytes: u64,
    pub(super) cache_bytes: u64,
    /// Values.
    pub(super) values: u64,
    /// Bytes that left memory, and the seconds that the insertions took.
    pub(super) stored: Phase,
    /// Bytes that came back while the tier was open.
    pub(super) fetched: Phase,
    /// Bytes that came back after it was opened again.
    pub(super) again: Phase,
    /// Seconds of opening it again, and values found then.
    pub(super) open_seconds: f64,
    pub(super) found: u64,
    /// The figures of the tier before it was closed.
    pub(super) stats: TierStats,
    /// The faults that were found.
    pub(super) mismatches: Vec<String>,
}

/// A part of the work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Phase {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

impl Phase {
    pub(super) fn gb_per_s(self) -> f64 {
        self.bytes as f64 / 1e9 / self.seconds.max(1e-9)
    }
}

impl OnDisk {
    /// Bytes written to the drive for each byte of a value.
    pub(super) fn write_amplification(&self) -> f64 {
        let TierStats { written_bytes, metadata_bytes, .. } = self.stats;
        (written_bytes + metadata_bytes) as f64 / written_bytes.max(1) as f64
    }
}

/// Makes a file in `folder` that has no name any more.
fn nameless(folder: &Path) -> io::Result<(File, PathBuf)> {
    let path = folder.join(format!("kvmem-tour-{}.tier", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok((file, by_descriptor))
}

/// Stores and fetches, in a file in `folder`.
///
/// # Errors
/// There is no room for a tier.
pub(super) fn show(pool: &Pool, folder: &Path) -> Result<OnDisk, Missing> {
    let cache_bytes = (pool.capacity() / PART_OF_POOL).max(MIN_CACHE);
    let value_bytes = (cache_bytes / VALUES).max(MIN_VALUE);
    let tier_bytes = TIER * cache_bytes;
    let missing = |error: &dyn std::fmt::Display| {
        let why = format!("{} in {} cannot be used: {error}", bytes(tier_bytes), shown(folder));
        let doctor = format!("kvmem doctor --tier {}", shown(&folder.join("FILE")));
        Missing::new("a disk tier", why, &["run the tour in a folder of a local drive", &doctor])
    };
    let (_file, path) = nameless(folder).map_err(|error| missing(&error))?;
    let options = DiskTierOptions { bytes: Some(tier_bytes), ..DiskTierOptions::default() };
    let open = || DiskTier::open(&path, &options).map(|(tier, found)| (Arc::new(tier), found));
    let (tier, _) = open().map_err(|error| missing(&error))?;
    let access = match (tier.device().engine(), tier.device().is_direct()) {
        (Engine::IoUring, true) => "by io_uring and direct I/O",
        (Engine::IoUring, false) => "by io_uring, through the page cache",
        (Engine::Threads, true) => "by threads and direct I/O",
        (Engine::Threads, false) => "by threads, through the page cache",
    };
    let cache_over = |tier: &Arc<DiskTier>| {
        let tier: Arc<DiskTier> = Arc::clone(tier);
        let cache = KvCache::<u64>::builder(pool)
            .max_bytes(cache_bytes)
            .lower_tier(tier)
            .with_allocator(kvmem_tier::allocate)
            .build();
        cache.map_err(|error| missing(&error))
    };
    let values = ROUNDS * cache_bytes / value_bytes;
    let work = DiskWork {
        payloads: Payloads::new(&[value_bytes]),
        value_bytes,
        going: Going::new("disk", Some(3 * values)),
    };
    let cache = cache_over(&tier)?;
    let mut mismatches = Vec::new();
    let (values, seconds) = work.store(&cache, values, &mut mismatches);
    let stored = Phase { bytes: tier.stats().written_bytes, seconds };
    let fetched = work.fetch(&cache, values, &mut mismatches);
    // The values that are still in memory go to the disk, too.
    cache.evict_to(0);
    let synced = tier.sync_all();
    let stats = tier.stats();
    drop(cache);
    drop(tier);
    mismatches.extend(synced.err().map(|error| error.to_string()));

    let start = Instant::now();
    let (tier, report) = open().map_err(|error| missing(&error))?;
    let open_seconds = start.elapsed().as_secs_f64();
    if report.entries < values {
        mismatches.push(format!("{} of {values} values are there after a restart", report.entries));
    }
    let cache = cache_over(&tier)?;
    let again = work.fetch(&cache, values, &mut mismatches);
    Ok(OnDisk {
        folder: folder.to_owned(),
        access,
        value_bytes,
        cache_bytes,
        values,
        stored,
        fetched,
        again,
        open_seconds,
        found: report.entries,
        stats,
        mismatches,
    })
}

/// What all phases share.
struct DiskWork {
    payloads: Payloads,
    value_bytes: u64,
    going: Going,
}

impl DiskWork {
    /// Returns the identity of a value's bytes.
    fn id(key: u64) -> ObjectId {
        ObjectId { block: key, number: 0 }
    }

    /// Inserts values; returns how many, and the seconds that it took.
    fn store(&self, cache: &KvCache<u64>, values: u64, mismatches: &mut Vec<String>) -> (u64, f64) {
        let start = Instant::now();
        for key in 0..values {
            match cache.reserve(key, self.value_bytes as usize) {
                Ok(mut room) => {
                    self.payloads.write(DiskWork::id(key), room.bytes_mut());
                    drop(room.commit());
                }
                Err(error) => {
                    mismatches.push(error.to_string());
                    return (key, start.elapsed().as_secs_f64());
                }
            }
            self.going.further(1);
            if start.elapsed() > LONGEST {
                return (key + 1, start.elapsed().as_secs_f64());
            }
        }
        (values, start.elapsed().as_secs_f64())
    }

    /// Fetches and verifies all values, from the oldest on.
    fn fetch(&self, cache: &KvCache<u64>, values: u64, mismatches: &mut Vec<String>) -> Phase {
        let mut phase = Phase::default();
        let keys: Vec<u64> = (0..values).collect();
        for keys in keys.chunks(BATCH as usize) {
            let start = Instant::now();
            let found = cache.get_batch(keys);
            phase.seconds += start.elapsed().as_secs_f64();
            for (&key, found) in keys.iter().zip(found) {
                match found {
                    None => {
                        mismatches.push(format!("value {key} is neither in memory nor on the disk"))
                    }
                    Some(found) if self.payloads.verify(DiskWork::id(key), &found).is_err() => {
                        mismatches
                            .push(format!("the bytes of value {key} differ from those written"));
                    }
                    Some(_) => phase.bytes += self.value_bytes,
                }
            }
            self.going.further(keys.len() as u64);
        }
        phase
    }
}

#[cfg(test)]
mod tests {
    use kvmem::arena::PageSize;

    use super::*;

    #[test]
    fn values_come_back_and_nothing_is_left() {
        let folder = tempfile::tempdir().expect("it can be made");
        let pool = Pool::builder(16 << 20).ladder(PageSize::Base).build().expect("16 MiB");
        let disk = show(&pool, folder.path()).expect("there is room");
        assert_eq!(disk.mismatches, [""; 0]);
        assert_eq!((disk.values, disk.found), (192, 192), "{disk:?}");
        assert!(disk.stored.bytes >= 8 << 20 && disk.write_amplification() > 1.0, "{disk:?}");
        assert_eq!(disk.again.bytes, 12 << 20);
        assert_eq!(pool.metrics().allocated, 0);
        std::fs::remove_dir(folder.path()).expect("it is empty");
        let missing = show(&pool, folder.path()).expect_err("the folder is gone");
        assert!(missing.why.contains("No such file") && missing.remedies.len() == 2, "{missing:?}");
    }
}

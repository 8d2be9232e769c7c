//! *Index*: what it takes in memory, how fast it is read again, and how full the file gets.

use std::io;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use kvmem::tier::TierRead;
use kvmem_testkit::workload::stream;
use kvmem_tier::device::{Device, Read, Write};
use kvmem_tier::{DiskTier, DiskTierOptions};
use rand::RngExt;

use crate::bench::loops::paired::{INDEX_BYTES, KV_BYTES};
use crate::bench::suite::Figures;
use crate::bench::values::BLOCK;

/// Measures the index, with a file in `dir`: a tier with `entries` values is opened, and one of
/// `space` bytes without a disk shows the share of the file's blocks that values occupy when the
/// next object has no room, the mean of these moments.
pub(super) fn measure(dir: &Path, entries: u64, space: u64) -> Result<Figures> {
    let (bytes_per_entry, open_s) = opening(dir, entries)?;
    let figures = Figures::of("bytes a value", bytes_per_entry).with("s to open", open_s);
    Ok(figures.with("utilization", utilization(space)?))
}

/// Returns the bytes of the index for each value, and the seconds of opening.
fn opening(dir: &Path, entries: u64) -> Result<(f64, f64)> {
    let path = dir.join("index");
    let options = DiskTierOptions {
        // Each value has a block; the index on the disk has less than another fifth.
        bytes: Some(entries * BLOCK * 5 / 4 + (16 << 20)),
        max_entries: Some(entries),
        ..DiskTierOptions::default()
    };
    let (tier, _) = DiskTier::open(&path, &options)?;
    const AT_ONCE: u64 = 1024;
    for first in (0..entries).step_by(AT_ONCE as usize) {
        let keys: Vec<[u8; 8]> =
            (first..entries.min(first + AT_ONCE)).map(u64::to_le_bytes).collect();
        let values: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &[7][..])).collect();
        tier.store(&values).into_iter().collect::<Result<(), _>>()?;
    }
    let stats = tier.stats();
    drop(tier);
    let start = Instant::now();
    let (tier, report) = DiskTier::open(&path, &options)?;
    let open_s = start.elapsed().as_secs_f64();
    ensure!(report.entries == entries, "{} of {entries} values are found", report.entries);
    drop(tier);
    std::fs::remove_file(&path)?;
    Ok((stats.index_bytes as f64 / entries as f64, open_s))
}

/// A device that keeps nothing: only the space on it counts.
struct NoDevice(u64);

impl Device for NoDevice {
    fn len(&self) -> u64 {
        self.0
    }

    fn is_new(&self) -> bool {
        true
    }

    fn memory_align(&self) -> usize {
        1
    }

    fn write(&self, batch: &[Write<'_>], _: &mut dyn FnMut(usize)) -> Vec<io::Result<()>> {
        batch.iter().map(|_| Ok(())).collect()
    }

    fn read(
        &self,
        batch: &mut [Read<'_>],
        done: &mut dyn FnMut(usize, &mut Read<'_>, io::Result<()>),
    ) {
        for (index, read) in batch.iter_mut().enumerate() {
            done(index, read, Err(io::ErrorKind::UnexpectedEof.into()));
        }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Stores objects in pairs, and looks for others at random, so that the order of eviction is
/// random; returns the mean utilization when the next object has no room.
fn utilization(space: u64) -> Result<f64> {
    let options =
        DiskTierOptions { max_entries: Some(space / INDEX_BYTES), ..DiskTierOptions::default() };
    let (tier, _) = DiskTier::on(NoDevice(space), &options)?;
    let capacity = tier.stats().capacity;
    let object = vec![7; KV_BYTES as usize];
    let mut random = stream(1, 0);
    let (mut sum, mut samples, mut stored) = (0.0, 0_u32, 0_u64);
    // As many objects again as fill the space.
    let objects = 4 * capacity / (KV_BYTES + INDEX_BYTES);
    while stored < objects {
        let pairs = random.random_range(1..=128_u64);
        for len in [KV_BYTES, INDEX_BYTES] {
            for _ in 0..pairs {
                let before = tier.stats();
                let value = &object[..len as usize];
                tier.store(&[(&stored.to_le_bytes(), value)]).remove(0)?;
                stored += 1;
                if tier.stats().evictions > before.evictions && stored > objects / 2 {
                    sum += before.used as f64 / capacity as f64;
                    samples += 1;
                }
                for _ in 0..8 {
                    let key = random.random_range(0..stored).to_le_bytes();
                    // A request of another length counts as a use, and reads nothing.
                    tier.fetch(&mut [TierRead { key: &key, into: &mut [] }]);
                }
            }
        }
    }
    Ok(sum / f64::from(samples))
}

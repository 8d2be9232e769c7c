//! The library's tier.

use kvmem::tier::TierRead;
use kvmem_tier::device::{Device, FileDevice};
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched, TierError};

use super::{Room, TierContender};
use crate::tier::TierMeasureError;
use crate::values::Memory;

/// A tier in a file, or on another device.
pub(in crate::tier) struct Tier<D: Device = FileDevice>(DiskTier<D>);

/// Returns the options of a tier of `bytes` bytes.
fn options(bytes: u64, memory: &Memory) -> DiskTierOptions {
    // One is evicted while another takes its place.
    let max_entries = bytes / memory.stride as u64 + memory.count as u64;
    DiskTierOptions { max_entries: Some(max_entries), ..DiskTierOptions::default() }
}

impl Tier {
    pub(super) fn new(room: Room<'_>, memory: &Memory) -> Result<Tier, TierMeasureError> {
        let options = DiskTierOptions {
            bytes: Some(room.bytes),
            depth: Some(room.depth),
            ..options(room.bytes, memory)
        };
        let (tier, _) = DiskTier::open(room.dir.join("tier"), &options)?;
        // As the plain transfers have them; where memory cannot be pinned, neither has.
        let _ = tier.register_memory(&memory.pool);
        Ok(Tier(tier))
    }
}

impl<D: Device> Tier<D> {
    /// Makes a tier of a device, and loses what is on it.
    pub(in crate::tier) fn on(device: D, memory: &Memory) -> Result<Tier<D>, TierError> {
        let options = DiskTierOptions { format: true, ..options(device.len(), memory) };
        Ok(Tier(DiskTier::on(device, &options)?.0))
    }

    /// Returns the bytes of the values that it holds at most, with padding.
    pub(in crate::tier) fn capacity(&self) -> u64 {
        self.0.stats().capacity
    }
}

impl<D: Device> TierContender for Tier<D> {
    fn store(&mut self, memory: &mut Memory, first: u64) -> Result<(), TierMeasureError> {
        let (len, keys) = (memory.len, keys(first..first + memory.count as u64));
        let values = keys.iter().zip(memory.values(first));
        let values: Vec<(&[u8], &[u8])> =
            values.map(|(key, value)| (&key[..], &value[..len])).collect();
        self.0.store(&values).into_iter().collect::<Result<(), _>>()?;
        Ok(())
    }

    fn fetch(&mut self, memory: &mut Memory, numbers: &[u64]) -> Result<(), TierMeasureError> {
        let (len, keys) = (memory.len, keys(numbers.iter().copied()));
        let rooms = keys.iter().zip(memory.rooms());
        let mut requests: Vec<TierRead<'_>> =
            rooms.map(|(key, into)| TierRead { key, into: &mut into[..len] }).collect();
        let fetched = self.0.fetch(&mut requests);
        match numbers.iter().zip(fetched).find(|(_, fetched)| *fetched != Fetched::Hit) {
            None => Ok(()),
            Some((&number, found)) => {
                Err(TierMeasureError::Lost { number, found: format!("{found:?}") })
            }
        }
    }
}

fn keys(numbers: impl Iterator<Item = u64>) -> Vec<[u8; 8]> {
    numbers.map(u64::to_le_bytes).collect()
}

//! The library's tier.

use anyhow::{Result, bail};
use kvmem::pool::Pool;
use kvmem::tier::TierRead;
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched};

use super::Room;
use crate::bench::values::{Memory, ValueContender};

/// A tier in a file.
pub(super) struct Tier(DiskTier);

impl Tier {
    pub(super) fn new(room: Room<'_>, stride: usize, count: usize, pool: &Pool) -> Result<Tier> {
        // One is evicted while another takes its place.
        let max_entries = room.bytes / stride as u64 + count as u64;
        let options = DiskTierOptions {
            bytes: Some(room.bytes),
            depth: Some(room.depth),
            max_entries: Some(max_entries),
            ..DiskTierOptions::default()
        };
        let (tier, _) = DiskTier::open(room.dir.join("tier"), &options)?;
        // As the plain transfers have them; where memory cannot be pinned, neither has.
        let _ = tier.register_memory(pool);
        Ok(Tier(tier))
    }
}

impl ValueContender for Tier {
    fn store(&mut self, memory: &mut Memory, first: u64) -> Result<()> {
        let (len, keys) = (memory.len, keys(first..first + memory.count as u64));
        let values = keys.iter().zip(memory.values(first));
        let values: Vec<(&[u8], &[u8])> =
            values.map(|(key, value)| (&key[..], &value[..len])).collect();
        self.0.store(&values).into_iter().collect::<Result<(), _>>()?;
        Ok(())
    }

    fn fetch(&mut self, memory: &mut Memory, numbers: &[u64]) -> Result<()> {
        let (len, keys) = (memory.len, keys(numbers.iter().copied()));
        let rooms = keys.iter().zip(memory.rooms());
        let mut requests: Vec<TierRead<'_>> =
            rooms.map(|(key, into)| TierRead { key, into: &mut into[..len] }).collect();
        let fetched = self.0.fetch(&mut requests);
        match numbers.iter().zip(fetched).find(|(_, fetched)| *fetched != Fetched::Hit) {
            None => Ok(()),
            Some((number, found)) => bail!("value {number} is not found: {found:?}"),
        }
    }
}

fn keys(numbers: impl Iterator<Item = u64>) -> Vec<[u8; 8]> {
    numbers.map(u64::to_le_bytes).collect()
}

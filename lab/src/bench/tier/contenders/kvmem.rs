//! The library's tier.

use std::io::{self, Write};
use std::sync::Arc;

use anyhow::{Result, bail};
use kvmem::pool::Pool;
use kvmem::tier::{DataType, TierHints, TierRead, TierValue};
use kvmem_tier::{Codec, DiskTier, DiskTierOptions, Fetched, Keyring};

use super::Room;
use crate::bench::values::{Memory, ValueContender};

/// A tier in a file.
pub(super) struct Tier(DiskTier);

impl Tier {
    pub(super) fn new(
        room: Room<'_>,
        stride: usize,
        count: usize,
        pool: &Pool,
        codec: Codec,
        encrypts: bool,
    ) -> Result<Tier> {
        // One is evicted while another takes its place. Compressed ones are more than half as long.
        let fit = room.bytes / stride as u64 * if codec == Codec::None { 1 } else { 2 };
        let max_entries = fit + count as u64;
        let keys = encrypts.then(keyring).transpose()?.map(Arc::new);
        let options = DiskTierOptions {
            bytes: Some(room.bytes),
            depth: Some(room.depth),
            max_entries: Some(max_entries),
            codec,
            keys,
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
        let hints = TierHints { data_type: DataType::Bfloat16, ..TierHints::default() };
        let values: Vec<TierValue<'_>> = values
            .map(|(key, value)| TierValue::new(key, &value[..len]).with_hints(hints))
            .collect();
        self.0.store_with(&values).into_iter().collect::<Result<(), _>>()?;
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

    fn written_bytes(&self) -> Option<u64> {
        Some(self.0.stats().written_bytes)
    }
}

/// Returns a keyring with one key.
fn keyring() -> Result<Keyring> {
    let (read, mut write) = io::pipe()?;
    write.write_all("2a".repeat(32).as_bytes())?;
    drop(write);
    Ok(Keyring::from_fd(read.into())?)
}

fn keys(numbers: impl Iterator<Item = u64>) -> Vec<[u8; 8]> {
    numbers.map(u64::to_le_bytes).collect()
}

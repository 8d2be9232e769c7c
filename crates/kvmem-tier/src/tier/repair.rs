//! *Repair*: quarantined parts that hold what is written to them are used again.
//!
//! A part is quarantined when a value in it was damaged. The cause may be over: a drive has
//! replaced the sector, a cable was changed, or the bytes were changed in memory before they were
//! written.
//! Each part is therefore written and read back several times, with other bytes each time, and
//! other ones in each block: a drive that returns another block, or one from before, is noticed.
//! The device is synced in between. A file without direct I/O is read from the page cache, which
//! says nothing about the drive.
//!
//! The journal has no change that gives a part back, so a checkpoint without the part comes before
//! its blocks are free.

use kvmem::offset::RawHandle;

use super::error::TierError;
use super::tier::DiskTier;
use crate::device::{AlignedBuffer, Device};
use crate::format::{BLOCK, Extent};

/// How often a part is written and read back.
const ROUNDS: u64 = 3;
/// Blocks that are written at once.
const AT_ONCE: u32 = 256;

/// Result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// Parts that were quarantined, and are used again.
    pub returned: Vec<Extent>,
    /// Parts that stay quarantined: they do not hold what is written to them.
    pub left: Vec<Extent>,
}

impl RepairReport {
    /// Returns the bytes of the parts that are used again.
    #[must_use]
    pub fn returned_bytes(&self) -> u64 {
        bytes_of(&self.returned)
    }

    /// Returns the bytes of the parts that stay quarantined.
    #[must_use]
    pub fn left_bytes(&self) -> u64 {
        bytes_of(&self.left)
    }
}

fn bytes_of(parts: &[Extent]) -> u64 {
    parts.iter().map(|part| u64::from(part.blocks) * BLOCK as u64).sum()
}

/// Fills a block with bytes of its own for each round.
fn fill(block: &mut [u8], index: u32, round: u64) {
    // SplitMix64 (Steele, Lea and Flood 2014).
    let mut state = u64::from(index) << 8 | round;
    let (words, _) = block.as_chunks_mut::<8>();
    for word in words {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        *word = (mixed ^ mixed >> 31).to_le_bytes();
    }
}

impl<D: Device> DiskTier<D> {
    /// Writes to each quarantined part and reads it back, three times. Parts that hold what is
    /// written are used again. Other threads may use the tier meanwhile.
    ///
    /// # Errors
    /// [`TierError`]: no part is used again.
    pub fn repair(&self) -> Result<RepairReport, TierError> {
        self.owned()?;
        self.usable()?;
        let parts: Vec<(Extent, RawHandle)> = self.state().quarantined.clone();
        let mut sound: Vec<bool> = vec![true; parts.len()];
        for round in 0..ROUNDS {
            for ((part, _), sound) in parts.iter().zip(&mut sound) {
                *sound = *sound
                    && self.each_piece(part, round, |tier, at, bytes| {
                        tier.device.write_at(at, bytes).is_ok()
                    });
            }
            self.sync()?;
            for ((part, _), sound) in parts.iter().zip(&mut sound) {
                *sound = *sound
                    && self.each_piece(part, round, |tier, at, bytes| {
                        let mut found = AlignedBuffer::new(bytes.len() / BLOCK);
                        tier.device.read_at(at, &mut found).is_ok() && *found == *bytes
                    });
            }
        }
        let is_sound = |one: &(Extent, RawHandle)| {
            parts.iter().zip(&sound).any(|(part, &sound)| part == one && sound)
        };
        let (returned, left) = {
            let mut state = self.state();
            let all = std::mem::take(&mut state.quarantined);
            let (returned, left): (Vec<_>, Vec<_>) = all.into_iter().partition(is_sound);
            state.quarantined.clone_from(&left);
            state.stats.written_bytes += ROUNDS * bytes_of(&extents(&parts));
            (returned, left)
        };
        if !returned.is_empty() {
            self.checkpoint()?;
        }
        for (_, range) in &returned {
            // The index gave it up when the part was quarantined, and no other thread has it.
            let freed = self.space.free_raw(*range);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
        Ok(RepairReport { returned: extents(&returned), left: extents(&left) })
    }

    /// Calls `work` with where each piece of a part begins, in bytes of the device, and with what
    /// it has in a round. Returns whether all calls return true.
    fn each_piece(
        &self,
        part: &Extent,
        round: u64,
        work: impl Fn(&Self, u64, &[u8]) -> bool,
    ) -> bool {
        let mut buffer = AlignedBuffer::new(part.blocks.min(AT_ONCE) as usize);
        (0..part.blocks).step_by(AT_ONCE as usize).all(|first| {
            let count = AT_ONCE.min(part.blocks - first) as usize;
            let bytes = &mut buffer[..count * BLOCK];
            let start = part.start + first;
            for (index, block) in (start..).zip(bytes.chunks_exact_mut(BLOCK)) {
                fill(block, index, round);
            }
            work(self, self.layout.data.block(start), bytes)
        })
    }
}

fn extents(parts: &[(Extent, RawHandle)]) -> Vec<Extent> {
    parts.iter().map(|&(extent, _)| extent).collect()
}

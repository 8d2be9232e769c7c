//! Real memory behind the offsets, to prove that they never overlap.
//!
//! An allocator of offsets can be wrong without anybody noticing: two blocks that share a byte look fine until one of
//! them is read. So a backed replay writes every block full of a pattern of its own, keeps the checksum, and compares
//! it whenever the block is hit.

use std::ops::Range;
use std::path::Path;

use memmap2::{MmapMut, MmapOptions};

/// An anonymous mapping as large as the pool.
pub struct Backing {
    map: MmapMut,
}

/// Why there is no memory behind the pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackingError {
    /// The machine, or the control group, has less memory than the pool would fill.
    #[error(
        "--backed fills the whole pool: {pool_bytes} bytes, but only {available_bytes} bytes of memory are available; \
         choose a smaller --pool"
    )]
    NotEnough {
        /// The pool asked for.
        pool_bytes: u64,
        /// What could be had.
        available_bytes: u64,
    },
    /// The system refused the mapping.
    #[error("cannot map {pool_bytes} bytes: {source}")]
    Map {
        /// The pool asked for.
        pool_bytes: u64,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A range that the allocator handed out beyond the end of the pool.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the range {}..{} lies outside the pool of {pool_bytes} bytes", .range.start, .range.end)]
pub struct OutsidePool {
    range: Range<u64>,
    pool_bytes: u64,
}

impl Backing {
    /// Maps `pool_bytes` of memory, after making sure that they are there.
    ///
    /// # Errors
    /// [`BackingError`] if less memory is available, or the mapping fails.
    pub fn new(pool_bytes: u64) -> Result<Self, BackingError> {
        if let Some(available_bytes) = available_bytes()
            && pool_bytes > available_bytes
        {
            return Err(BackingError::NotEnough { pool_bytes, available_bytes });
        }
        let map = usize::try_from(pool_bytes)
            .map_err(|_| std::io::ErrorKind::OutOfMemory.into())
            .and_then(|len| MmapOptions::new().len(len).map_anon())
            .map_err(|source| BackingError::Map { pool_bytes, source })?;
        Ok(Backing { map })
    }

    /// Fills the objects of block `id` with its pattern and returns their checksum.
    ///
    /// # Errors
    /// [`OutsidePool`] if an object reaches beyond the mapping; what comes before it is written.
    pub fn write(
        &mut self,
        id: u64,
        objects: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<u32, OutsidePool> {
        let mut checksum = crc32fast::Hasher::new();
        for (number, range) in objects.into_iter().enumerate() {
            let span = self.span(&range)?;
            let bytes = &mut self.map[span];
            fill(bytes, id, number as u64);
            checksum.update(bytes);
        }
        Ok(checksum.finalize())
    }

    /// The checksum of the objects as they are in memory now.
    ///
    /// # Errors
    /// [`OutsidePool`] if an object reaches beyond the mapping.
    pub fn checksum(&self, objects: impl IntoIterator<Item = Range<u64>>) -> Result<u32, OutsidePool> {
        let mut checksum = crc32fast::Hasher::new();
        for range in objects {
            checksum.update(&self.map[self.span(&range)?]);
        }
        Ok(checksum.finalize())
    }

    fn span(&self, range: &Range<u64>) -> Result<Range<usize>, OutsidePool> {
        if range.start > range.end || range.end > self.map.len() as u64 {
            return Err(OutsidePool { range: range.clone(), pool_bytes: self.map.len() as u64 });
        }
        // Both ends are at most the mapping's length, which is a usize.
        Ok(range.start as usize..range.end as usize)
    }
}

/// Fills `bytes` with a stream that differs for every block and object: the SplitMix64 sequence from a seed of both.
fn fill(bytes: &mut [u8], id: u64, number: u64) {
    let mut state = mix(id).wrapping_add(mix(!number));
    let mut words = bytes.chunks_exact_mut(8);
    for word in &mut words {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&mix(state).to_le_bytes());
    }
    let tail = words.into_remainder();
    let last = mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
    tail.copy_from_slice(&last[..tail.len()]);
}

/// The output function of SplitMix64 (Steele, Lea, Flood: *Fast splittable pseudorandom number generators*, 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The bytes this process can still fill: what the machine has available, or what its control groups leave if that is
/// less. `None` where neither can be read.
fn available_bytes() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_available(&text));
    let group = std::fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| group_room(&text));
    machine.into_iter().chain(group).min()
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The tightest room among this process's control group and those above it (cgroup v2; `0::/a/b` in `cgroup`).
fn group_room(cgroup: &str) -> Option<u64> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let number = |folder: &Path, file: &str| -> Option<u64> {
        std::fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
    };
    // A group without a limit says `max`, which is no number.
    root.join(path)
        .ancestors()
        .take_while(|folder| folder.starts_with(root))
        .filter_map(|folder| {
            let limit = number(folder, "memory.max")?;
            Some(limit.saturating_sub(number(folder, "memory.current").unwrap_or(0)))
        })
        .min()
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use super::*;

    #[test]
    fn a_block_reads_back_as_it_was_written() {
        let mut backing = Backing::new(1 << 20).unwrap();
        let (a, b) = ([0..1000, 5000..5013], [1000..1999, 5013..5014]);
        let sum_a = backing.write(1, a.clone()).unwrap();
        let sum_b = backing.write(2, b.clone()).unwrap();
        assert_eq!(backing.checksum(a).unwrap(), sum_a);
        assert_eq!(backing.checksum(b).unwrap(), sum_b);
    }

    #[test]
    fn one_shared_byte_changes_the_checksum() {
        let mut backing = Backing::new(1 << 20).unwrap();
        let sum = backing.write(1, once(0..1000)).unwrap();
        backing.write(2, once(999..2000)).unwrap();
        assert_ne!(backing.checksum(once(0..1000)).unwrap(), sum);
    }

    #[test]
    fn patterns_differ_by_block_and_by_object() {
        let mut backing = Backing::new(1 << 16).unwrap();
        let sums: Vec<u32> = (0..64).map(|id| backing.write(id, once(0..64)).unwrap()).collect();
        let distinct: std::collections::HashSet<_> = sums.iter().collect();
        assert_eq!(distinct.len(), sums.len());
        backing.write(7, [0..64, 64..128]).unwrap();
        assert_ne!(backing.map[0..64], backing.map[64..128]);
    }

    #[test]
    fn ranges_outside_the_pool_are_refused() {
        let mut backing = Backing::new(4096).unwrap();
        assert!(backing.write(1, once(4000..4097)).is_err());
        assert!(backing.checksum(once(u64::MAX - 1..u64::MAX)).is_err());
        assert!(backing.write(1, once(4000..4096)).is_ok());
    }

    #[test]
    fn more_than_the_machine_has_is_refused_with_both_figures() {
        let Some(available) = available_bytes() else { return };
        let pool_bytes = available.saturating_mul(2).max(1 << 50);
        let error = Backing::new(pool_bytes).err().expect("so much memory cannot be mapped").to_string();
        assert!(error.contains(&pool_bytes.to_string()), "{error}");
    }

    #[test]
    fn reads_what_the_kernel_prints() {
        let meminfo = "MemTotal:       24684092 kB\nMemFree: 1 kB\nMemAvailable:   24408408 kB\n";
        assert_eq!(mem_available(meminfo), Some(24_408_408 * 1024));
        assert_eq!(mem_available("MemTotal: 5 kB\n"), None);
        assert_eq!(group_room("1:memory:/a\n"), None);
    }
}

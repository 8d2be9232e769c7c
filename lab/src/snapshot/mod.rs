//! *Snapshots* of Mooncake's offset allocator: the bytes that its `serialize_to` writes, read,
//! checked, and imported into an [`OffsetAllocator`](kvmem::offset::OffsetAllocator).
//!
//! ## The bytes
//!
//! All numbers are little-endian. Sizes and offsets of ranges are in *units* of
//! 2^`multiplier_bits` bytes.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | base: the address of the first unit |
//! | 8 | 8 | multiplier_bits |
//! | 16 | 8 | capacity in bytes |
//! | 24 | 8 | bytes that live allocations requested |
//! | 32 | 8 | live allocations |
//! | 40 | 4 | size of the space in units |
//! | 44 | 4 | nodes *n* in the file |
//! | 48 | 4 | the largest number of nodes |
//! | 52 | 4 | free units |
//! | 56 | 4 | one bit for each group of eight bins with a free range |
//! | 60 | 32 | one bit for each bin of a group with a free range |
//! | 92 | 1024 | the first node of each of the 256 bins |
//! | 1116 | 4 | nodes in use, of the stack of nodes |
//! | 1120 | 28 *n* | nodes |
//! | | 4 *n* | the stack of nodes: those in use first |
//!
//! A node has the offset and size of a range, the nodes before and behind it in its bin, the nodes
//! before and behind it in the order of addresses, and one byte that is 1 if the range is in use,
//! with three bytes of padding. The number 2^32 − 1 stands for no node.
//!
//! A bin holds free ranges of similar sizes: sizes as floating-point numbers with three bits of
//! mantissa, rounded down.

mod check;
mod import;
mod read;

use std::fmt;
use std::path::Path;

use kvmem::arena::ByteSize;
use serde::Serialize;

pub use self::check::{SnapshotFault, check};
pub use self::import::{ImportedSnapshot, SnapshotImportError, SnapshotRange, import};
pub use self::read::{AllocatorSnapshot, SnapshotError, SnapshotNode};

/// No node.
pub const NO_NODE: u32 = u32::MAX;

/// Returns the bin that holds free ranges of this size in units.
#[must_use]
pub fn bin_of(units: u32) -> usize {
    if units < 8 {
        return units as usize;
    }
    let shift = 28 - units.leading_zeros();
    (((shift + 1) << 3) | (units >> shift & 7)) as usize
}

/// Returns the smallest size in units of a bin, which is also the longest request that it serves.
#[must_use]
pub fn size_of(bin: usize) -> u64 {
    let (exponent, mantissa) = (bin >> 3, bin as u64 & 7);
    if exponent == 0 { mantissa } else { (8 | mantissa) << (exponent - 1) }
}

/// The result of a check.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotReport {
    /// The capacity in bytes.
    pub capacity: u64,
    /// Bytes of a unit.
    pub unit: u64,
    /// Nodes in the file.
    pub nodes: u32,
    /// Everything that is wrong.
    pub faults: Vec<String>,
    /// The space with the ranges of the snapshot, unless something is wrong with them.
    pub imported: Option<ImportedSnapshot>,
}

impl SnapshotReport {
    /// Reads and checks a snapshot, and imports it if nothing is wrong.
    ///
    /// # Errors
    /// [`SnapshotError`]: it cannot be read as a snapshot.
    pub fn of(path: &Path) -> Result<SnapshotReport, SnapshotError> {
        let snapshot = AllocatorSnapshot::open(path)?;
        let mut faults: Vec<String> =
            check(&snapshot).into_iter().map(|fault| fault.to_string()).collect();
        let imported = match import(&snapshot) {
            Ok(imported) => faults.is_empty().then_some(imported),
            Err(error) => {
                faults.push(error.to_string());
                None
            }
        };
        Ok(SnapshotReport {
            capacity: snapshot.capacity,
            unit: snapshot.unit(),
            nodes: snapshot.nodes.len() as u32,
            faults,
            imported,
        })
    }
}

impl fmt::Display for SnapshotReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SnapshotReport { capacity, unit, nodes, faults, imported } = self;
        writeln!(f, "capacity       {}, in units of {}", ByteSize(*capacity), ByteSize(*unit))?;
        writeln!(f, "nodes          {nodes}")?;
        if let Some(imported) = imported {
            let ImportedSnapshot { ranges, used, free, requested, .. } = imported;
            let padding = used.saturating_sub(*requested);
            writeln!(
                f,
                "in use         {} range(s), {}, {} of it padding",
                ranges.len(),
                ByteSize(*used),
                ByteSize(padding)
            )?;
            let count = imported.free_ranges;
            writeln!(f, "free           {} in {count} range(s)", ByteSize(*free))?;
            writeln!(
                f,
                "longest        {} can be allocated in kvmem's allocator, {} in the original",
                ByteSize(imported.longest),
                ByteSize(imported.longest_of_bins)
            )?;
            writeln!(
                f,
                "fragmentation  {:.1} % in kvmem's allocator, {:.1} % in the original",
                imported.fragmentation * 100.0,
                imported.fragmentation_of_bins * 100.0
            )?;
        }
        match faults.as_slice() {
            [] => writeln!(f, "nothing is wrong with it"),
            faults => faults.iter().try_for_each(|fault| writeln!(f, "wrong          {fault}")),
        }
    }
}

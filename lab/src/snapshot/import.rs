//! *Importing* the ranges of a snapshot into kvmem's allocator of offsets.

use kvmem::offset::{AllocError, OffsetAllocator, SpaceError};
use serde::Serialize;

use super::{AllocatorSnapshot, size_of};

/// A range in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotRange {
    /// The node that names it in the original.
    pub node: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes, as the original rounds them.
    pub bytes: u64,
}

/// A space with the ranges of a snapshot.
#[derive(Clone, Debug, Serialize)]
pub struct ImportedSnapshot {
    /// Bytes in use.
    pub used: u64,
    /// Bytes that were requested.
    pub requested: u64,
    /// Free bytes.
    pub free: u64,
    /// The longest request that kvmem's allocator serves.
    pub longest: u64,
    /// The longest request that the original is sure to serve: it rounds sizes to those of bins.
    pub longest_of_bins: u64,
    /// Free ranges.
    pub free_ranges: u64,
    /// The part of the free bytes that the longest request of kvmem's allocator cannot have.
    pub fragmentation: f64,
    /// The part that the longest request that the original is sure to serve cannot have.
    pub fragmentation_of_bins: f64,
    /// The ranges in use, in the order of addresses.
    pub ranges: Vec<SnapshotRange>,
    /// The space.
    #[serde(skip)]
    pub space: OffsetAllocator,
}

/// Returns the part of the free bytes outside of the longest request; 0 if nothing is free.
fn fragmentation(free: u64, longest: u64) -> f64 {
    if free == 0 { 0.0 } else { 1.0 - longest as f64 / free as f64 }
}

/// The error of an import.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotImportError {
    /// There can be no space of this size.
    #[error("its space cannot be made: {0}")]
    Space(#[from] SpaceError),
    /// A range overlaps another one, or lies outside of the space.
    #[error("node {node} at byte {offset}, of {bytes} bytes, cannot be taken: {source}")]
    Range {
        /// The node.
        node: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
        /// The error of the space.
        source: AllocError,
    },
}

/// Makes a space with the ranges of a snapshot that are in use, each at its place. O(ranges × log
/// ranges) at most.
///
/// # Errors
/// [`SnapshotImportError`].
pub fn import(snapshot: &AllocatorSnapshot) -> Result<ImportedSnapshot, SnapshotImportError> {
    let space = OffsetAllocator::new(snapshot.capacity)?;
    let (mut ranges, mut free_ranges) = (Vec::new(), 0);
    for number in snapshot.chain() {
        let node = &snapshot.nodes[number as usize];
        if node.used == 0 {
            free_ranges += 1;
            continue;
        }
        let offset = u64::from(node.offset) << snapshot.multiplier_bits;
        let bytes = u64::from(node.size) << snapshot.multiplier_bits;
        space
            .allocate_raw_at(offset..offset + bytes)
            .map_err(|source| SnapshotImportError::Range { node: number, offset, bytes, source })?;
        ranges.push(SnapshotRange { node: number, offset, bytes });
    }
    let metrics = space.metrics();
    let bin = snapshot.bins.iter().rposition(|first| *first != super::NO_NODE);
    let longest_of_bins = bin.map_or(0, |bin| size_of(bin) << snapshot.multiplier_bits);
    Ok(ImportedSnapshot {
        used: ranges.iter().map(|range| range.bytes).sum(),
        requested: snapshot.allocated_bytes,
        free: metrics.free,
        longest: metrics.largest_free,
        longest_of_bins,
        free_ranges,
        fragmentation: fragmentation(metrics.free, metrics.largest_free),
        fragmentation_of_bins: fragmentation(metrics.free, longest_of_bins),
        ranges,
        space,
    })
}

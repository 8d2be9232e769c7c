//! *Reading* a snapshot: its fields, as they are.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// Bytes before the nodes.
const HEADER: u64 = 1120;
/// Bytes of a node and of its entry on the stack.
const NODE: u64 = 28 + 4;
/// The largest number of nodes: as many as the original accepts.
const NODES_MAX: u32 = 1 << 26;

/// The error of a file that cannot be read as a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// The file is too short for the fields before the nodes.
    #[error(
        "it has {len} bytes, and a snapshot at least {HEADER}: is it what `serialize_to` wrote?"
    )]
    TooShort {
        /// Bytes of the file.
        len: u64,
    },
    /// The file has other bytes than its nodes need.
    #[error(
        "it names {nodes} nodes, which need {need} bytes, and has {len}: it was cut, or is no \
         snapshot of `serialize_to`"
    )]
    Length {
        /// Nodes by the header.
        nodes: u32,
        /// Bytes that they need, with the header.
        need: u64,
        /// Bytes of the file.
        len: u64,
    },
    /// More nodes than the original accepts.
    #[error("it names {nodes} nodes, at most {NODES_MAX}: it is no snapshot")]
    Nodes {
        /// Nodes by the header.
        nodes: u32,
    },
    /// The unit is not a power of two in 64 bits, or the space is empty.
    #[error(
        "its units are 2^{multiplier_bits} bytes, at most 2^31, of a capacity of {capacity} bytes, \
         at least 1: it is no snapshot"
    )]
    Units {
        /// The power of two.
        multiplier_bits: u64,
        /// Bytes of the space.
        capacity: u64,
    },
}

/// A node: a range, free or in use, or one that names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotNode {
    /// First unit of the range.
    pub offset: u32,
    /// Units of the range.
    pub size: u32,
    /// The node before it in its bin.
    pub bin_prev: u32,
    /// The node behind it in its bin.
    pub bin_next: u32,
    /// The node of the range before it.
    pub prev: u32,
    /// The node of the range behind it.
    pub next: u32,
    /// Whether the range is in use; other values than 0 and 1 are damage.
    pub used: u8,
}

/// The fields of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatorSnapshot {
    /// The address of the first unit.
    pub base: u64,
    /// The power of two that is the bytes of a unit.
    pub multiplier_bits: u64,
    /// Bytes of the space.
    pub capacity: u64,
    /// Bytes that live allocations requested.
    pub allocated_bytes: u64,
    /// Live allocations.
    pub allocations: u64,
    /// Units of the space.
    pub size: u32,
    /// The largest number of nodes.
    pub max_nodes: u32,
    /// Free units.
    pub free: u32,
    /// One bit for each group of bins with a free range.
    pub used_groups: u32,
    /// One bit for each bin of a group with a free range.
    pub used_bins: [u8; 32],
    /// The first node of each bin.
    pub bins: Vec<u32>,
    /// Nodes in use: the entries of the stack before this one.
    pub nodes_in_use: u32,
    /// The nodes.
    pub nodes: Vec<SnapshotNode>,
    /// The stack of nodes: those in use first.
    pub stack: Vec<u32>,
}

/// Reads numbers.
struct Numbers<R>(R);

impl<R: Read> Numbers<R> {
    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn list(&mut self, count: usize) -> io::Result<Vec<u32>> {
        (0..count).map(|_| self.u32()).collect()
    }
}

impl AllocatorSnapshot {
    /// Reads a snapshot from a file. O(nodes) in time and memory.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn open(path: &Path) -> Result<AllocatorSnapshot, SnapshotError> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is no regular file").into());
        }
        AllocatorSnapshot::read(BufReader::new(file), metadata.len())
    }

    /// Reads a snapshot of `len` bytes.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn read(from: impl Read, len: u64) -> Result<AllocatorSnapshot, SnapshotError> {
        if len < HEADER {
            return Err(SnapshotError::TooShort { len });
        }
        let mut from = Numbers(from);
        let (base, multiplier_bits, capacity) = (from.u64()?, from.u64()?, from.u64()?);
        let (allocated_bytes, allocations) = (from.u64()?, from.u64()?);
        if multiplier_bits > 31 || capacity == 0 {
            return Err(SnapshotError::Units { multiplier_bits, capacity });
        }
        let (size, nodes, max_nodes, free) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
        // Before memory is taken for them.
        if nodes > NODES_MAX {
            return Err(SnapshotError::Nodes { nodes });
        }
        let need = HEADER + u64::from(nodes) * NODE;
        if need != len {
            return Err(SnapshotError::Length { nodes, need, len });
        }
        let (used_groups, used_bins) = (from.u32()?, from.bytes()?);
        let (bins, nodes_in_use) = (from.list(256)?, from.u32()?);
        let node = |_| -> io::Result<SnapshotNode> {
            let (offset, size) = (from.u32()?, from.u32()?);
            let (bin_prev, bin_next) = (from.u32()?, from.u32()?);
            let (prev, next) = (from.u32()?, from.u32()?);
            let [used, ..] = from.bytes::<4>()?;
            Ok(SnapshotNode { offset, size, bin_prev, bin_next, prev, next, used })
        };
        let nodes = (0..nodes).map(node).collect::<Result<Vec<_>, _>>()?;
        let stack = from.list(nodes.len())?;
        Ok(AllocatorSnapshot {
            base,
            multiplier_bits,
            capacity,
            allocated_bytes,
            allocations,
            size,
            max_nodes,
            free,
            used_groups,
            used_bins,
            bins,
            nodes_in_use,
            nodes,
            stack,
        })
    }

    /// Returns the bytes of a unit.
    #[must_use]
    pub fn unit(&self) -> u64 {
        1 << self.multiplier_bits
    }

    /// Returns the nodes of the ranges in the order of addresses, as their links have it, up to the
    /// first link that leads nowhere or back.
    #[must_use]
    pub fn chain(&self) -> Vec<u32> {
        let mut seen = vec![false; self.nodes.len()];
        // The first range: in use, or in a bin, and none before it.
        let live = self.stack.iter().take(self.nodes_in_use as usize);
        let first = live.copied().find(|number| {
            let node = self.nodes.get(*number as usize);
            node.is_some_and(|node| node.prev == super::NO_NODE && node.offset == 0)
        });
        let mut chain = Vec::new();
        let mut next = first.unwrap_or(super::NO_NODE);
        while let Some(node) = self.nodes.get(next as usize)
            && !std::mem::replace(&mut seen[next as usize], true)
        {
            chain.push(next);
            next = node.next;
        }
        chain
    }
}

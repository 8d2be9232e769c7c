//! A space with shards, as the driver tests it.
//!
//! No allocation lies in two shards, so a space whose shards are equally long is, for the oracle, a
//! space with a boundary of that length. With a boundary of its own that is the boundary, however
//! long the shards are. Which thread requests is the same in both, as every request that any shard
//! can serve is served.
//!
//! Such a space cannot be resized, has no scattered requests, and names a shard in its handles.
//! [`without_unsupported`] removes the operations that the driver could not compare.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use kvmem::offset::{
    AllocError, Allocation, BinReport, CheckError, Metrics, OffsetAllocator, RawAllocation,
    RawError, RawHandle, ShardedAllocator, SpaceError,
};

use super::tested_allocator::TestedAllocator;
use crate::op::{Config, Op};

/// A space with shards. Its boundary, as the oracle knows it, is that of the space if `BOUNDARY`,
/// otherwise the length of the shards, whose number is then capacity over boundary.
#[derive(Clone, Debug)]
pub struct ShardedSpace<const BOUNDARY: bool> {
    space: ShardedAllocator,
    boundary: u64,
}

/// Returns the operations that a space with shards supports, on the spaces that `config` makes of
/// those that replace others.
pub fn without_unsupported(
    ops: impl IntoIterator<Item = Op>,
    config: impl Fn(Config) -> Config,
) -> Vec<Op> {
    let supported = |op| match op {
        Op::AllocateScattered { .. } | Op::Grow(_) | Op::ShrinkTo(_) | Op::Misuse { .. } => None,
        Op::Replace(other) => Some(Op::Replace(config(other))),
        other => Some(other),
    };
    ops.into_iter().filter_map(supported).collect()
}

/// Returns the error that a space with a boundary as long as the shards reports instead.
fn of_boundary(error: AllocError) -> AllocError {
    match error {
        AllocError::ShardTooShort { requested, shard: limit } => {
            AllocError::TooLarge { requested, limit }
        }
        other => other,
    }
}

/// Forwards each method to that of the space.
macro_rules! forward {
    ($($name:ident($($of:ident: $what:ty),*) -> $gives:ty;)*) => {
        $(fn $name(&self $(, $of: $what)*) -> $gives {
            self.space.$name($($of),*)
        })*
    };
}

impl<const BOUNDARY: bool> TestedAllocator for ShardedSpace<BOUNDARY> {
    type Owned = Allocation;
    const CACHES: bool = false;

    forward! {
        free_batch(run: Vec<Allocation>) -> ();
        capacity() -> u64;
        largest_free_hint() -> u64;
        metrics() -> Metrics;
        bins() -> Vec<BinReport>;
        check() -> Result<(), CheckError>;
        free_raw(handle: RawHandle) -> Result<u64, RawError>;
        resolve_raw(handle: RawHandle) -> Result<Range<u64>, RawError>;
        shrink_raw(handle: RawHandle, new_size: u64) -> Result<(), RawError>;
        extend_raw(handle: RawHandle, new_size: u64) -> Result<(), RawError>;
        adopt_raw(handle: RawHandle) -> Result<Allocation, RawError>;
    }

    fn open(config: &Config) -> Result<Self> {
        let boundary = config.boundary.context("the oracle needs a boundary")?;
        let builder = OffsetAllocator::builder(config.capacity).placement(config.placement);
        let segments = config.capacity.div_ceil(boundary);
        let (builder, shards) = if BOUNDARY {
            (builder.boundary(boundary), segments.min(2 + config.capacity % 7))
        } else {
            (builder, segments)
        };
        let space = builder.shards(u32::try_from(shards)?).build()?;
        let equal = space.shard_metrics().iter().all(|shard| shard.capacity == boundary);
        ensure!(BOUNDARY || equal, "the shards of {config:?} are not of one length");
        Ok(ShardedSpace { space, boundary })
    }

    fn allocate(&self, size: u64) -> Result<Allocation, AllocError> {
        self.space.allocate(size).map_err(of_boundary)
    }

    fn allocate_aligned(&self, size: u64, align: u64) -> Result<Allocation, AllocError> {
        self.space.allocate_aligned(size, align).map_err(of_boundary)
    }

    fn allocate_batch(&self, size: u64, n: usize) -> Result<Vec<Allocation>, AllocError> {
        self.space.allocate_batch(size, n).map_err(of_boundary)
    }

    fn allocate_raw(&self, size: u64) -> Result<RawAllocation, AllocError> {
        self.space.allocate_raw(size).map_err(of_boundary)
    }

    fn allocate_aligned_raw(&self, size: u64, align: u64) -> Result<RawAllocation, AllocError> {
        self.space.allocate_aligned_raw(size, align).map_err(of_boundary)
    }

    fn allocate_scattered(&self, total: u64, _: usize) -> Result<Vec<Allocation>, AllocError> {
        Err(AllocError::NoRanges { requested: total })
    }

    fn grow_to(&self, requested: u64) -> Result<(), SpaceError> {
        Err(SpaceError::WrongDirection { capacity: self.capacity(), requested })
    }

    fn shrink_to(&self, requested: u64) -> Result<(), SpaceError> {
        Err(SpaceError::WrongDirection { capacity: self.capacity(), requested })
    }

    fn boundary(&self) -> Option<u64> {
        Some(self.boundary)
    }

    fn map(&self) -> Vec<(u64, u64, bool)> {
        self.space.map().iter().map(|range| (range.offset, range.size, range.used)).collect()
    }

    fn make_raw(_: Option<&Self>, own: Allocation) -> Result<RawHandle, Allocation> {
        Ok(own.into_raw())
    }

    fn parts(&self) -> usize {
        self.space.shards()
    }
}

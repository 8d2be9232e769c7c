//! The core alone, for the model check in `tests/loom`: the shared face stands on statics, which
//! loom cannot model.

use std::ops::Range;

use super::core::SpaceCore;
use super::heap::{Heap, Placed};
use super::{AllocError, Placement};

/// A space, without registry and RAII.
pub struct SpaceModel {
    core: SpaceCore,
}

/// A range that was granted, to be freed by [`SpaceModel::free`].
#[derive(Debug)]
pub struct MaybePlaced {
    placed: Placed,
    size: u64,
}

impl MaybePlaced {
    /// Where it lies.
    pub fn range(&self) -> Range<u64> {
        self.placed.offset..self.placed.offset + self.size
    }
}

impl SpaceModel {
    /// An empty space.
    pub fn new(capacity: u64) -> Self {
        let core = SpaceCore::new();
        core.open(1, Heap::new(capacity, None, Placement::BestFit, u32::MAX));
        SpaceModel { core }
    }

    /// As `OffsetAllocator::allocate`.
    pub fn allocate(&self, size: u64) -> Result<MaybePlaced, AllocError> {
        Ok(MaybePlaced { placed: self.core.allocate(size)?, size })
    }

    /// As dropping an `Allocation`.
    pub fn free(&self, granted: MaybePlaced) {
        self.core.free(granted.placed, Some(granted.size));
    }

    /// As `OffsetAllocator::grow`.
    pub fn grow(&self, capacity: u64) {
        self.core.resize(|heap| heap.grow(capacity)).expect("larger than before");
    }

    /// As `OffsetAllocator::largest_free_hint`.
    pub fn hint(&self) -> u64 {
        self.core.largest_free_hint()
    }

    /// As `OffsetAllocator::check`.
    pub fn check(&self) {
        self.core.check().expect("whole books");
    }
}

//! The core alone, for the model check in `tests/loom`: the public interface uses statics, which
//! loom cannot model.

use std::ops::Range;

use super::allocator::SpaceCore;
use super::heap::{Heap, Placed};
use super::{AllocError, Placement};

/// A space, without registry and RAII.
pub struct SpaceModel {
    core: SpaceCore,
}

/// An allocated range, to be freed by [`SpaceModel::free`].
#[derive(Debug)]
pub struct ModelRange {
    placed: Placed,
    size: u64,
}

impl ModelRange {
    /// Returns its bytes.
    pub fn range(&self) -> Range<u64> {
        self.placed.offset..self.placed.offset + self.size
    }
}

impl SpaceModel {
    /// Creates an empty space.
    pub fn new(capacity: u64) -> Self {
        let core = SpaceCore::new();
        core.open(1, Heap::new(capacity, None, Placement::BestFit, u32::MAX));
        SpaceModel { core }
    }

    /// Allocates as `OffsetAllocator::allocate` does.
    pub fn allocate(&self, size: u64) -> Result<ModelRange, AllocError> {
        Ok(ModelRange { placed: self.core.allocate(size)?, size })
    }

    /// Frees as dropping an `Allocation` does.
    pub fn free(&self, range: ModelRange) {
        self.core.free(range.placed, Some(range.size));
    }

    /// Grows as `OffsetAllocator::grow_to` does.
    pub fn grow(&self, capacity: u64) {
        self.core.resize(|heap| heap.grow(capacity)).expect("larger than before");
    }

    /// Returns the hint as `OffsetAllocator::largest_free_hint` does.
    pub fn hint(&self) -> u64 {
        self.core.largest_free_hint()
    }

    /// Checks as `OffsetAllocator::check` does.
    pub fn check(&self) {
        self.core.check().expect("consistent metadata");
    }
}

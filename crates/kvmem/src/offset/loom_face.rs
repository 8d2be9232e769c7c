//! The core alone, for the model check in `tests/loom`: the shared face stands on statics, which
//! loom cannot model.

use std::ops::Range;

use super::core::Core;
use super::heap::{Grant, Heap};
use super::{AllocError, Placement};

/// A space, without registry and RAII.
pub struct Model {
    core: Core,
}

/// A range that was granted, to be freed by [`Model::free`].
#[derive(Debug)]
pub struct Granted {
    grant: Grant,
    size: u64,
}

impl Granted {
    /// Where it lies.
    pub fn range(&self) -> Range<u64> {
        self.grant.offset..self.grant.offset + self.size
    }
}

impl Model {
    /// An empty space.
    pub fn new(capacity: u64) -> Self {
        let core = Core::new();
        core.open(1, Heap::new(capacity, None, Placement::BestFit, u32::MAX));
        Model { core }
    }

    /// As `OffsetAllocator::allocate`.
    pub fn allocate(&self, size: u64) -> Result<Granted, AllocError> {
        Ok(Granted { grant: self.core.allocate(size)?, size })
    }

    /// As dropping an `Allocation`.
    pub fn free(&self, granted: Granted) {
        self.core.free(granted.grant, Some(granted.size));
    }

    /// As `OffsetAllocator::grow_to`.
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

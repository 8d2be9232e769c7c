//! A model of the published allocator.
//!
//! 1. *Bins.* A free range belongs to one of 240 bins. A small float with five bits of exponent and
//!    three of mantissa names the bin, so each power of two has eight bins and sizes below eight
//!    have one each. A range belongs to the largest bin that does not exceed its size.
//! 2. *Two-level bitmap.* One word tells which exponents have a free range; one byte for each
//!    exponent tells which of its eight bins have. The search starts at the smallest bin that is
//!    not *below* the request and takes the last range added to the first non-empty bin.
//! 3. *Split and merge.* The request takes the low end of the range; the remainder returns to a
//!    bin. Nodes know their neighbours in address order, and a freed range merges with free
//!    neighbours immediately.
//! 4. *Rounding.* The search looks only at bins at or above the request. An object of an in-between
//!    size leaves a hole whose bin is below the one where the search for the next such object
//!    starts; the hole is lost until a neighbour is freed. [`Binned`] therefore gives every object
//!    the whole size of its bin; [`BinnedUnrounded`] is the allocator before that change.
//! 5. *Tables.* Nodes and the stack of spare nodes are created with the allocator. Offsets are 32
//!    bits wide. A space above the largest bin (3.75 GiB) is divided into units of a power of two
//!    bytes, and requests are rounded up to units before they are rounded up to bins.
//! 6. *Sharing.* One mutex protects everything, behind a reference count; a handle holds a weak
//!    reference, so it may outlive the allocator.
//!
//! The model is written to be as fast as the original: no allocation after creation, indices whose
//! bounds the compiler can see, and no bookkeeping that the original lacks.

mod heap;
mod small_float;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Contender, ContenderId, CreateError, RangeHandle, Space};
use heap::{BinHeap, NONE};
use small_float::MAX_BIN_SIZE;

/// The state that the mutex protects.
struct Guarded<const ROUND: bool> {
    heap: BinHeap<ROUND>,
    /// Requested bytes and live ranges, counted as in the original.
    live_bytes: u64,
    live: u64,
}

/// The part that handles refer to.
struct ModelState<const ROUND: bool> {
    guarded: Mutex<Guarded<ROUND>>,
    unit_shift: u32,
}

/// The model; `ROUND` tells whether sizes are rounded up to bins.
pub struct BinnedModel<const ROUND: bool>(Arc<ModelState<ROUND>>);

/// The published allocator in its current form.
pub type Binned = BinnedModel<true>;
/// The published allocator before sizes were rounded.
pub type BinnedUnrounded = BinnedModel<false>;

/// A live range: 40 bytes, as published.
pub struct ModelHandle<const ROUND: bool> {
    owner: Weak<ModelState<ROUND>>,
    /// The original's weak pointer is two words wide, Rust's is one. This is the second word, so
    /// tables of handles have equal sizes.
    _second_word: usize,
    offset: u32,
    node: u32,
    base: u64,
    size: u64,
}

impl<const ROUND: bool> RangeHandle for ModelHandle<ROUND> {
    #[inline]
    fn offset(&self) -> u64 {
        self.base
    }

    #[inline]
    fn size(&self) -> u64 {
        self.size
    }
}

impl<const ROUND: bool> Drop for ModelHandle<ROUND> {
    #[inline]
    fn drop(&mut self) {
        if let Some(owner) = self.owner.upgrade() {
            let mut guarded = owner.guarded.lock().unwrap_or_else(PoisonError::into_inner);
            debug_assert!(guarded.heap.is_used_at(self.node, self.offset));
            guarded.heap.free(self.node);
            guarded.live_bytes -= self.size;
            guarded.live -= 1;
        }
    }
}

impl<const ROUND: bool> Contender for BinnedModel<ROUND> {
    const ID: ContenderId = if ROUND { ContenderId::Binned } else { ContenderId::BinnedUnrounded };
    type Handle = ModelHandle<ROUND>;

    fn create(space: Space) -> Result<Self, CreateError> {
        let error = |reason: &str| CreateError {
            contender: Self::ID,
            capacity: space.capacity,
            reason: reason.into(),
        };
        if space.capacity == 0 {
            return Err(error("the space is empty"));
        }
        let mut unit_shift = 0;
        while space.capacity >> unit_shift > MAX_BIN_SIZE {
            unit_shift += 1;
        }
        // One node for each object and for each hole between two, and one at the end of the stack
        // that is never used.
        let max_nodes = u32::try_from(space.max_live.saturating_mul(2).saturating_add(2))
            .ok()
            .filter(|&n| n < NONE)
            .ok_or_else(|| error("node indices are 32 bits wide"))?;
        let heap = BinHeap::new((space.capacity >> unit_shift) as u32, max_nodes);
        let guarded = Mutex::new(Guarded { heap, live_bytes: 0, live: 0 });
        Ok(Self(Arc::new(ModelState { guarded, unit_shift })))
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<ModelHandle<ROUND>> {
        if size == 0 {
            return None;
        }
        let shared = &self.0;
        let mut guarded = shared.guarded.lock().unwrap_or_else(PoisonError::into_inner);
        let units = size.checked_add((1 << shared.unit_shift) - 1)? >> shared.unit_shift;
        if units > MAX_BIN_SIZE {
            return None;
        }
        let (offset, node) = guarded.heap.allocate(units as u32)?;
        guarded.live_bytes += size;
        guarded.live += 1;
        drop(guarded);
        let base = u64::from(offset) << shared.unit_shift;
        Some(ModelHandle {
            owner: Arc::downgrade(shared),
            _second_word: 0,
            offset,
            node,
            base,
            size,
        })
    }

    fn metadata_bytes(&self) -> Option<u64> {
        // Only the part of the tables that the current live set needs: they are sized for the
        // largest live set.
        let guarded = self.0.guarded.lock().unwrap_or_else(PoisonError::into_inner);
        Some((size_of::<ModelState<ROUND>>() + guarded.heap.metadata_bytes()) as u64)
    }
}

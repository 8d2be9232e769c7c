//! The published allocator, modelled.
//!
//! 1. *Bins.* A free range lies in one of 240 bins. A bin is named by a small float: five bits of
//!    exponent, three of mantissa, so there are eight bins in each power of two and sizes below
//!    eight have one each. A range is filed under the largest bin that is not above its size.
//! 2. *Two-level bitmap.* One word says which exponents have a free range, one byte for each
//!    exponent says which of its eight bins have. The search starts at the smallest bin that is not
//!    *below* the request, takes the first bin that is not empty and the range that was filed there
//!    last.
//! 3. *Split and merge.* The request takes the low end of the range, the rest is filed again. Nodes
//!    know their neighbours in address order; a freed range swallows free neighbours at once.
//! 4. *Rounding.* Since the search only looks at bins at or above the request, a hole left by an
//!    object of an in-between size is filed below the bin in which the next such object is looked
//!    for, and is lost until a neighbour dies. [`Binned`] therefore gives every object the whole
//!    size of its bin; [`BinnedUnrounded`] is the allocator before that change.
//! 5. *Tables.* Nodes and the stack of spare nodes are created with the allocator. Offsets are 32
//!    bits wide; a space above the largest bin (3.75 GiB) is cut into units of a power of two
//!    bytes, and requests are rounded up to units before they are rounded up to bins.
//! 6. *Sharing.* One mutex around it all, behind a reference count; a handle holds a weak
//!    reference, so that it may outlive the allocator.
//!
//! Written to be as fast as the original is: no allocation after creation, indices whose bounds the
//! compiler can see, and no bookkeeping that the original lacks.

mod heap;
mod small_float;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Contender, ContenderId, CreateError, Held, Space};
use heap::{Heap, NONE};
use small_float::MAX_BIN_SIZE;

/// The state behind the mutex.
struct Guarded<const ROUND: bool> {
    heap: Heap<ROUND>,
    /// Bytes asked for and ranges alive, as the original counts them.
    live_bytes: u64,
    live: u64,
}

/// What handles refer to.
struct Shared<const ROUND: bool> {
    guarded: Mutex<Guarded<ROUND>>,
    unit_shift: u32,
}

/// The model; `ROUND` says whether sizes are rounded up to bins.
pub struct Model<const ROUND: bool>(Arc<Shared<ROUND>>);

/// The published allocator as it is now.
pub type Binned = Model<true>;
/// The published allocator before sizes were rounded.
pub type BinnedUnrounded = Model<false>;

/// A live range: 40 bytes, as published.
pub struct Handle<const ROUND: bool> {
    owner: Weak<Shared<ROUND>>,
    /// A weak pointer of the original is two words wide, ours is one. This is the other, so that a
    /// table of handles weighs what theirs weighs.
    _second_word: usize,
    offset: u32,
    node: u32,
    base: u64,
    size: u64,
}

impl<const ROUND: bool> Held for Handle<ROUND> {
    #[inline]
    fn offset(&self) -> u64 {
        self.base
    }

    #[inline]
    fn size(&self) -> u64 {
        self.size
    }
}

impl<const ROUND: bool> Drop for Handle<ROUND> {
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

impl<const ROUND: bool> Contender for Model<ROUND> {
    const ID: ContenderId = if ROUND { ContenderId::Binned } else { ContenderId::BinnedUnrounded };
    type Handle = Handle<ROUND>;

    fn create(space: Space) -> Result<Self, CreateError> {
        let refuse = |reason: &str| CreateError {
            contender: Self::ID,
            capacity: space.capacity,
            reason: reason.into(),
        };
        if space.capacity == 0 {
            return Err(refuse("an empty space"));
        }
        let mut unit_shift = 0;
        while space.capacity >> unit_shift > MAX_BIN_SIZE {
            unit_shift += 1;
        }
        // One node for each object and each hole between two, and one at the end of the stack that
        // is never used.
        let max_nodes = u32::try_from(space.max_live.saturating_mul(2).saturating_add(2))
            .ok()
            .filter(|&n| n < NONE)
            .ok_or_else(|| refuse("node indices are 32 bits wide"))?;
        let heap = Heap::new((space.capacity >> unit_shift) as u32, max_nodes);
        let guarded = Mutex::new(Guarded { heap, live_bytes: 0, live: 0 });
        Ok(Self(Arc::new(Shared { guarded, unit_shift })))
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<Handle<ROUND>> {
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
        Some(Handle { owner: Arc::downgrade(shared), _second_word: 0, offset, node, base, size })
    }

    fn metadata_bytes(&self) -> Option<u64> {
        // Tables as the live set of now would need them: they are sized for the most that may ever
        // be live.
        let guarded = self.0.guarded.lock().unwrap_or_else(PoisonError::into_inner);
        Some((size_of::<Shared<ROUND>>() + guarded.heap.metadata_bytes()) as u64)
    }
}

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
//! 7. *Hopeless requests.* An atomic number bounds the bins that have a free range, and a request
//!    above it fails without the mutex. Allocations leave the bound as it is: they only make ranges
//!    shorter. A request that fails under the mutex lowers it. From then on each free raises it if
//!    the merged range needs that, until everything is free.
//!
//! The model is written to be as fast as the original: no allocation after creation, indices whose
//! bounds the compiler can see, and no bookkeeping that the original lacks.

mod heap;
mod small_float;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::{Context, Result, ensure};

use super::{Contender, RangeHandle, Space};
use heap::{BinHeap, NONE};
use small_float::{MAX_BIN_SIZE, bin_ceil};

/// The state that the mutex protects.
struct Guarded<const ROUND: bool> {
    heap: BinHeap<ROUND>,
    /// Requested bytes and live ranges, counted as in the original.
    live_bytes: u64,
    live: u64,
    /// Whether the bound has been lowered, so that frees must raise it.
    lowered: bool,
}

/// The part that handles refer to.
struct ModelState<const ROUND: bool> {
    guarded: Mutex<Guarded<ROUND>>,
    /// Every bin that has a free range is below this number. Relaxed everywhere: it changes under
    /// the mutex alone, and a thread that knows of a free has synchronized with it.
    bins_below: AtomicU32,
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
    _base: u64,
    size: u64,
}

impl<const ROUND: bool> RangeHandle for ModelHandle<ROUND> {
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
            let bin = guarded.heap.free(self.node);
            guarded.live_bytes -= self.size;
            guarded.live -= 1;
            if guarded.lowered {
                guarded.lowered = guarded.live > 0;
                if u32::from(bin) >= owner.bins_below.load(Ordering::Relaxed) {
                    owner.bins_below.store(u32::from(bin) + 1, Ordering::Relaxed);
                }
            }
        }
    }
}

impl<const ROUND: bool> Contender for BinnedModel<ROUND> {
    type Handle = ModelHandle<ROUND>;

    fn create(space: Space) -> Result<Self> {
        ensure!(space.capacity > 0, "the space is empty");
        let mut unit_shift = 0;
        while space.capacity >> unit_shift > MAX_BIN_SIZE {
            unit_shift += 1;
        }
        // One node for each object and for each hole between two, and one at the end of the stack
        // that is never used.
        let max_nodes = u32::try_from(space.max_live.saturating_mul(2).saturating_add(2)).ok();
        let max_nodes = max_nodes.filter(|&n| n < NONE);
        let max_nodes = max_nodes.with_context(|| {
            format!("{} objects have more nodes than 32 bits can number", space.max_live)
        })?;
        let heap = BinHeap::new((space.capacity >> unit_shift) as u32, max_nodes);
        let bins_below = AtomicU32::new(heap.bins_below());
        let guarded = Mutex::new(Guarded { heap, live_bytes: 0, live: 0, lowered: false });
        Ok(Self(Arc::new(ModelState { guarded, bins_below, unit_shift })))
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<ModelHandle<ROUND>> {
        if size == 0 {
            return None;
        }
        let shared = &self.0;
        let units = size.checked_add((1 << shared.unit_shift) - 1)? >> shared.unit_shift;
        if units > MAX_BIN_SIZE {
            return None;
        }
        let units = units as u32;
        if u32::from(bin_ceil(units)) >= shared.bins_below.load(Ordering::Relaxed) {
            return None;
        }
        let mut guarded = shared.guarded.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((offset, node)) = guarded.heap.allocate(units) else {
            // Nodes may have run out instead.
            if !guarded.heap.is_out_of_nodes() {
                shared.bins_below.store(guarded.heap.bins_below(), Ordering::Relaxed);
                guarded.lowered = true;
            }
            return None;
        };
        guarded.live_bytes += size;
        guarded.live += 1;
        drop(guarded);
        let (_base, owner) = (u64::from(offset) << shared.unit_shift, Arc::downgrade(shared));
        Some(ModelHandle { owner, _second_word: 0, offset, node, _base, size })
    }

    fn metadata_bytes(&self) -> Option<u64> {
        // Only the part of the tables that the current live set needs: they are sized for the
        // largest live set.
        let guarded = self.0.guarded.lock().unwrap_or_else(PoisonError::into_inner);
        Some((size_of::<ModelState<ROUND>>() + guarded.heap.metadata_bytes()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use kvmem_testkit::workload::Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Returns whether a request fails although a bin has a range for it.
    fn fails_wrongly<const ROUND: bool>(model: &BinnedModel<ROUND>, size: u64) -> bool {
        let failed = model.allocate(size).is_none();
        let guarded = model.0.guarded.lock().unwrap();
        let units = size.div_ceil(1 << model.0.unit_shift) as u32;
        failed && !guarded.heap.is_out_of_nodes() && guarded.heap.has_for(units)
    }

    fn requests_fail_only_without_a_range<const ROUND: bool>() {
        let mut random = Rng::seed_from_u64(7);
        let (mut lowered, mut raised) = (0, 0);
        for capacity in [1 << 12, 3 << 20, 1 << 34] {
            let model = BinnedModel::<ROUND>::create(Space { capacity, max_live: 64 }).unwrap();
            let mut live = Vec::new();
            for turn in 0..4000 {
                let before = model.0.bins_below.load(Ordering::Relaxed);
                // Grows, shrinks, and frees everything now and then.
                if turn % 500 == 499 {
                    live.clear();
                } else if !live.is_empty() && random.random_bool(0.4) {
                    live.swap_remove(random.random_range(0..live.len()));
                } else if live.len() < 63 {
                    let longest = capacity >> random.random_range(0..9);
                    let size = random.random_range(1..=longest);
                    live.extend(model.allocate(size));
                }
                let after = model.0.bins_below.load(Ordering::Relaxed);
                lowered += u32::from(after < before);
                raised += u32::from(after > before);
                for size in [1, capacity / 9, capacity / 2, capacity] {
                    assert!(!fails_wrongly(&model, size), "{size} of {capacity}, turn {turn}");
                }
            }
        }
        assert!(lowered > 100 && raised > 100, "{lowered}, {raised}");
    }

    #[test]
    fn a_request_fails_without_the_mutex_only_if_no_range_is_long_enough() {
        requests_fail_only_without_a_range::<true>();
        requests_fail_only_without_a_range::<false>();
    }
}

//! *Heap*: the metadata of one space. One thread at a time uses it.
//!
//! ## 1. The chain
//!
//! The space `[0, capacity)` is divided into ranges, used or free, without gap or overlap. Each
//! range has a [`RangeNode`] in a ring in address order. Node 0, the *sentinel*, closes the ring
//! and is neither used nor free. A used node stores where its range begins; the next node tells
//! where it ends. A free node names its [`Hole`], which stores offset, size and a place in a bin.
//!
//! ```text
//!        ┌────────┬──────────┬────────┬───────────────┬─ ─ ─
//! space  │ used   │ free     │ used   │ used          │
//!        └────────┴──────────┴────────┴───────────────┴─ ─ ─
//! nodes sentinel ⇄ 1 ⇄ 5 ⇄ 2 ⇄ 3 ⇄ … ⇄ sentinel   16 bytes each
//! holes            └─ {offset, size, bin links}      32 bytes each
//! ```
//!
//! ## 2. Allocate
//!
//! The allocator takes an exact hole among the first entries of the request's own bin. Otherwise it
//! examines a few entries of that bin, then the next non-empty bins, in which every hole fits. The
//! [placement](super::placement) chooses among the first few that fit, and chooses the end of the
//! hole to cut from. Sizes are never rounded.
//!
//! A space into which nothing has been freed yet allocates ranges [in order](super::order) instead.
//!
//! ## 3. Free
//!
//! The allocator examines both neighbours, coalesces the range with those that are free, and puts
//! the result into its bin. It defers this for a short time where that pays: see
//! [deferred](super::deferred).
//!
//! ## 4. Holes outside the bins
//!
//! Some holes are *held back* from step 2: the wholly free segments of a space with a
//! [boundary](super::boundary), and the [small-object region](super::small_objects). They count as
//! free. A request that fits nowhere else opens them before it fails.

use std::hint::select_unpredictable;
use std::ops::Range;

use super::bins::{Bins, Hole, NULL_HOLE};
use super::deferred::{DeferredFree, DeferredFrees};

use super::small_objects::RegionSearches;
use super::table::{ChunkedTable, NIL, TableSlot};
use crate::offset::error::AllocError;
use crate::offset::placement::{HoleEnd, Placement, PlacementPolicy};

/// Entries of the request's own bin that are examined before the next bin up.
const FLOOR_ENTRIES: usize = 8;
/// Exact holes that are compared with each other. Comparing more gains nothing measurable.
const EXACT_ENTRIES: usize = 4;
/// Exact holes that are examined for an aligned one when no nodes are left.
const MAX_EXACT_SCAN: usize = 1024;
/// Upper bound of the nodes that a single change needs.
pub(super) const NODES_PER_CHANGE: u32 = 4;
/// Number of ranges up to which exact holes are compared. The metadata then stays in the cache. In
/// larger spaces each look at a hole's neighbours costs one or two cache misses, and the choice
/// gains little.
const SMALL_SPACE_RANGES: u32 = 1 << 14;
/// Value of [`Heap::boundary`] without a boundary.
pub(super) const NO_BOUNDARY: u64 = u64::MAX;
/// The node that closes the ring.
pub(super) const SENTINEL: u32 = 0;

/// A range in the chain.
#[derive(Clone, Copy)]
pub(super) struct RangeNode {
    /// Where a used range begins (for the sentinel, where the space ends), or the [`free_word`] of
    /// a free range's hole.
    word: u64,
    /// Neighbours in address order.
    pub(super) prev: u32,
    pub(super) next: u32,
}

/// Above every offset, so it is never mistaken for one.
const FREE: u64 = (u32::MAX as u64) << 32;

#[inline]
fn free_word(hole: u32) -> u64 {
    FREE | u64::from(hole)
}

impl RangeNode {
    /// Returns the first word.
    #[inline]
    pub(super) fn word(&self) -> u64 {
        self.word
    }

    /// Returns the hole of a free range.
    #[inline]
    pub(super) fn hole(&self) -> Option<u32> {
        (self.word >= FREE).then_some(self.word as u32)
    }

    /// Returns the hole of a free range, or [`NULL_HOLE`]. Without a branch: whether a neighbour is
    /// free is unpredictable.
    #[inline]
    fn hole_or_null(&self) -> u32 {
        select_unpredictable(self.word >= FREE, self.word as u32, NULL_HOLE)
    }
}

impl TableSlot for RangeNode {
    const EMPTY: Self = RangeNode { word: 0, prev: NIL, next: NIL };
}

/// Nodes stored within the metadata itself. Loom's threads have small stacks.
const INLINE_NODES: usize = if cfg!(loom) { 64 } else { 256 };

/// An allocated range: its node and where it begins. Its size is the requested size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) node: u32,
    pub(crate) offset: u64,
}

/// An allocated range or none, in two registers. An `Option` passes through memory. A reader that
/// loads it there as a whole, right after it was written in parts, waits for all earlier stores: 5
/// ns of a call that takes 15.
#[derive(Clone, Copy)]
pub(crate) struct MaybePlaced {
    /// `NIL` if there is none.
    node: u32,
    offset: u64,
}

impl MaybePlaced {
    pub(crate) fn get(self) -> Option<Placed> {
        (self.node != NIL).then_some(Placed { node: self.node, offset: self.offset })
    }
}

impl From<Option<Placed>> for MaybePlaced {
    fn from(placed: Option<Placed>) -> Self {
        placed.map_or(MaybePlaced { node: NIL, offset: 0 }, |Placed { node, offset }| MaybePlaced {
            node,
            offset,
        })
    }
}

pub(crate) struct Heap {
    pub(super) nodes: ChunkedTable<RangeNode, INLINE_NODES>,
    pub(super) bins: Bins,
    pub(super) capacity: u64,
    /// No used range crosses a multiple of it, and no two free ranges coalesce across one.
    pub(super) boundary: u64,
    /// The run of free segments at the end of a space with a boundary (the wilderness), or `NIL`.
    /// It is held back, as the [other runs](Bins::runs) are.
    pub(super) wilderness: u32,
    /// The hole held back for small objects, or `NIL`.
    pub(super) small_region: u32,
    /// When to search for room for the next small-object region.
    pub(super) region_searches: RegionSearches,
    /// The ranges freed last that are not coalesced yet.
    pub(super) deferred: DeferredFrees,
    pub(super) policy: PlacementPolicy,
    /// Bytes in use.
    pub(super) allocated: u64,
    /// Ranges in use.
    pub(super) live: u64,
    /// Nothing has been freed yet; see [order](super::order).
    pub(super) fresh: bool,
}

impl Heap {
    /// Creates the metadata of an empty space of `capacity` ≥ 1 bytes, for at most `max_ranges`
    /// ranges, used and free.
    pub(crate) fn new(
        capacity: u64,
        boundary: Option<u64>,
        placement: Placement,
        max_ranges: u32,
    ) -> Self {
        let mut nodes = ChunkedTable::new(max_ranges.saturating_add(1));
        let sentinel = nodes.insert(RangeNode { word: capacity, prev: SENTINEL, next: SENTINEL });
        debug_assert_eq!(sentinel, SENTINEL);
        let mut heap = Heap {
            nodes,
            bins: Bins::new(),
            capacity,
            boundary: boundary.unwrap_or(NO_BOUNDARY),
            wilderness: NIL,
            small_region: NIL,
            region_searches: RegionSearches::default(),
            deferred: DeferredFrees::default(),
            policy: PlacementPolicy::new(placement, capacity),
            allocated: 0,
            live: 0,
            fresh: true,
        };
        heap.append_free(0, capacity);
        heap
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the length of the longest range that an empty space could allocate.
    pub(crate) fn limit(&self) -> u64 {
        self.capacity.min(self.boundary)
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.capacity - self.allocated
    }

    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// Returns the length of the longest range that could be allocated now. O(1).
    pub(crate) fn largest_free(&mut self) -> u64 {
        self.coalesce();
        self.largest_coalesced()
    }

    /// Returns the length of the longest hole, without the ranges whose coalescing is deferred.
    #[inline]
    pub(crate) fn largest_coalesced(&mut self) -> u64 {
        let largest = self.bins.largest();
        // All three are `NIL` unless something is held back.
        let held_back = self.wilderness & self.small_region & self.bins.first_run() != NIL;
        if held_back { largest.max(self.largest_held_back()) } else { largest }
    }

    #[cold]
    fn largest_held_back(&self) -> u64 {
        let small_region = self.coalesced_region().map_or(0, |joined| joined.end - joined.start);
        self.largest_segment().max(small_region)
    }

    /// Returns whether enough nodes are free for any one change.
    #[inline]
    pub(super) fn has_free_nodes(&mut self) -> bool {
        self.nodes.remaining() >= NODES_PER_CHANGE || self.reclaim_nodes()
    }

    /// Coalesces the small-object region to free its nodes; returns whether enough are free then.
    #[cold]
    fn reclaim_nodes(&mut self) -> bool {
        self.close_region();
        self.nodes.remaining() >= NODES_PER_CHANGE
    }

    /// Returns an upper bound of the ranges that can still be allocated: each takes a free node or
    /// a whole hole.
    pub(super) fn max_more_ranges(&self) -> u64 {
        u64::from(self.nodes.remaining()) + u64::from(self.bins.holes.live())
    }

    /// Returns the number of ranges, used and free.
    pub(crate) fn ranges(&self) -> u64 {
        u64::from(self.nodes.live()) - 1
    }

    /// Allocates `size` ≥ 1 bytes. Returns `None` if no free range is that long, or if no node is
    /// left.
    ///
    /// O(1): it examines at most [`FLOOR_ENTRIES`] holes and four bins, plus 24 holes if there are
    /// slots and 256 ranges when it opens a small-object region. Only a request that fits nothing
    /// else reads its own list to the end.
    #[inline]
    pub(crate) fn allocate(&mut self, size: u64) -> Option<Placed> {
        self.reuse(size).or_else(|| self.allocate_new(size))
    }

    /// Reuses the deferred range if it has exactly this size and may be reused.
    #[inline(always)]
    pub(crate) fn reuse(&mut self, size: u64) -> Option<Placed> {
        let DeferredFree { node, offset, .. } = self.deferred.reuse(size)?;
        self.policy.record(size);
        self.count_allocated(size);
        Some(Placed { node, offset })
    }

    /// Allocates `size` bytes when there is nothing to reuse.
    #[inline(always)]
    pub(crate) fn allocate_new(&mut self, size: u64) -> Option<Placed> {
        self.coalesce();
        if size > self.largest_coalesced() {
            return None;
        }
        let placed = self.allocate_coalesced(size)?;
        self.policy.record(size);
        Some(placed)
    }

    /// Allocates `size` bytes when nothing is deferred.
    #[inline(always)]
    fn allocate_coalesced(&mut self, size: u64) -> Option<Placed> {
        if !self.has_free_nodes() {
            return self.fit_whole(size, 1);
        }
        let apart =
            if self.fresh { self.allocate_in_order(size) } else { self.allocate_special(size) };
        if apart.is_some() {
            return apart;
        }
        if let Some(placed) = self.fit(size) {
            return Some(placed);
        }
        let opened = self.close_region() && self.bins.largest() >= size || self.open_segment(size);
        opened.then(|| self.fit(size)).flatten()
    }

    /// Allocates a small request from the small-object region, and a request that slots exist for
    /// at the start of a free slot.
    #[inline(always)]
    fn allocate_special(&mut self, size: u64) -> Option<Placed> {
        if self.policy.is_small(size)
            && let Some(placed) = self.allocate_in_region(size)
        {
            return Some(placed);
        }
        self.policy.slot(size).and_then(|slot| self.fit_slot(size, slot))
    }

    /// Allocates a free range of exactly this size that begins at a multiple of `align`, when no
    /// nodes are left for a remainder.
    #[cold]
    pub(super) fn fit_whole(&mut self, size: u64, align: u64) -> Option<Placed> {
        self.coalesce();
        let fits = |hole: &Hole| hole.size == size && hole.offset.is_multiple_of(align);
        let own = self.bins.list_of(size);
        let binned =
            self.bins.holes_of(own).take(MAX_EXACT_SCAN).find(|&id| fits(&self.bins.holes[id]));
        let id = binned.or_else(|| self.open_whole_run(size, align))?;
        Some(self.take_whole(id))
    }

    /// Compacts the records of holes after `frees` frees, if they take far more memory than they
    /// need. O(`frees`).
    #[inline]
    pub(super) fn trim_holes(&mut self, frees: usize) {
        let moves = self.bins.holes.moves_due(frees);
        if moves > 0 {
            self.move_holes(moves);
        }
    }

    #[cold]
    fn move_holes(&mut self, moves: usize) {
        for _ in 0..moves {
            let Some((old, new)) = self.bins.move_slot_down() else { break };
            self.set_free(self.bins.holes[new].node, new);
            for held_back in [&mut self.wilderness, &mut self.small_region] {
                if *held_back == old {
                    *held_back = new;
                }
            }
        }
    }

    /// Allocates `size` bytes from the binned holes.
    #[inline(always)]
    pub(super) fn fit(&mut self, size: u64) -> Option<Placed> {
        let own = self.bins.list_of(size);
        let found = match self.look_in(own, size) {
            NIL => match self.bins.above(own) {
                Some(list) => self.bins.first(list),
                None => self.last_of(own, size)?,
            },
            found if self.bins.holes[found].size == size => {
                let weighs =
                    self.policy.weighs_exact(size) && self.nodes.live() <= SMALL_SPACE_RANGES;
                let id = if weighs { self.best_exact(found, size) } else { found };
                return Some(self.take_whole(id));
            }
            found => found,
        };
        self.policy.refresh();
        let (id, end) = match self.policy.candidates(size) {
            1 => (
                found,
                self.policy
                    .better_end(self.bins.holes[found].size - size, self.neighbour_sizes(found)),
            ),
            candidates => self.best_of(candidates, found, size),
        };
        Some(self.take(id, size, end))
    }

    /// Returns an exact hole among the first entries of the request's own bin, or else the first
    /// one that is long enough, or `NIL`.
    #[inline(always)]
    fn look_in(&self, own: u32, size: u64) -> u32 {
        let mut found = NIL;
        for id in self.bins.holes_of(own).take(FLOOR_ENTRIES) {
            let room = self.bins.holes[id].size;
            if room == size {
                return id;
            }
            if room > size && found == NIL {
                found = id;
            }
        }
        found
    }

    /// Returns a hole of at least `size` bytes behind the first entries of the request's own bin.
    #[cold]
    fn last_of(&self, own: u32, size: u64) -> Option<u32> {
        if self.bins.is_uniform(own) {
            return None;
        }
        self.bins.holes_of(own).skip(FLOOR_ENTRIES).find(|&id| self.bins.holes[id].size >= size)
    }

    /// Returns the best of the first `candidates` holes that fit, starting with `found`, and the
    /// end of it to cut from.
    fn best_of(&self, candidates: usize, found: u32, size: u64) -> (u32, HoleEnd) {
        let weigh = |id: u32| {
            self.policy.weigh(self.bins.holes[id].size, size, || self.neighbour_sizes(id))
        };
        let (mut best, mut end) = weigh(found);
        let (mut id, mut chosen) = (found, found);
        for _ in 1..candidates {
            id = self.next_fit(id, size);
            if id == NIL {
                break;
            }
            let (score, its_end) = weigh(id);
            if score > best {
                (best, end, chosen) = (score, its_end, id);
            }
        }
        (chosen, end)
    }

    /// Returns the best of the first exact holes, `found` being one of them: the one that its
    /// neighbours lose least by.
    // Out of line: few requests come here.
    #[inline(never)]
    fn best_exact(&mut self, found: u32, size: u64) -> u32 {
        self.policy.refresh();
        let weigh = |id: u32| self.policy.weigh_exact(size, self.neighbour_sizes(id));
        let (mut best, mut chosen) = (weigh(found), found);
        let others = self.bins.after(found).take(EXACT_ENTRIES - 1);
        for id in others.filter(|&id| self.bins.holes[id].size == size) {
            let score = weigh(id);
            if score > best {
                (best, chosen) = (score, id);
            }
        }
        chosen
    }

    /// Returns the next hole after `id` that fits: further on in its list, or the first of the next
    /// bin, or `NIL`.
    #[inline(always)]
    fn next_fit(&self, id: u32, size: u64) -> u32 {
        // Some holes in the request's own bin are too short.
        let mut further = self.bins.after(id).take(FLOOR_ENTRIES);
        if let Some(next) = further.find(|&next| self.bins.holes[next].size >= size) {
            return next;
        }
        self.bins.above(self.bins.list_id_of(id)).map_or(NIL, |list| self.bins.first(list))
    }

    /// Allocates `size` bytes at one end of the binned hole `id`, which is at least that long.
    #[inline(always)]
    pub(super) fn take(&mut self, id: u32, size: u64, end: HoleEnd) -> Placed {
        let Hole { offset, size: room, node, .. } = self.bins.holes[id];
        if room == size {
            return self.take_whole(id);
        }
        self.count_allocated(size);
        // Without a branch: the end is unpredictable.
        let RangeNode { prev, next, .. } = self.nodes[node];
        let low = end == HoleEnd::Low;
        let (before, after) = select_unpredictable(low, (prev, node), (node, next));
        let start = offset + (room - size) * u64::from(!low);
        let used = self.link_between(before, after, start);
        self.bins.change(id, offset + size * u64::from(low), room - size);
        Placed { node: used, offset: start }
    }

    /// Allocates the whole binned hole `id`.
    #[inline]
    pub(super) fn take_whole(&mut self, id: u32) -> Placed {
        let Hole { offset, size, node, .. } = self.bins.remove(id);
        self.set_used(node, offset);
        self.count_allocated(size);
        Placed { node, offset }
    }

    #[inline]
    pub(super) fn count_allocated(&mut self, size: u64) {
        self.allocated += size;
        self.live += 1;
    }

    /// Turns the linked range `node`, `[offset, offset + size)`, into a hole and coalesces it with
    /// its free neighbours.
    #[inline]
    pub(super) fn release(&mut self, node: u32, offset: u64, size: u64) {
        let RangeNode { prev, next, .. } = self.nodes[node];
        let left = self.coalescible_hole(prev, offset);
        let right = self.coalescible_hole(next, offset + size);
        let joined = match (left, right) {
            (None, None) => {
                let id = self.bins.insert(Hole::new(offset, size, node));
                self.set_free(node, id);
                id
            }
            (Some(left), None) => {
                self.unlink(node);
                let Hole { offset, size: before, .. } = self.bins.holes[left];
                self.bins.change(left, offset, before + size);
                left
            }
            (None, Some(right)) => {
                self.unlink(node);
                let before = self.bins.holes[right].size;
                self.bins.change(right, offset, size + before);
                right
            }
            (Some(left), Some(right)) => {
                self.unlink(node);
                let after = self.bins.remove(right);
                self.unlink(after.node);
                let Hole { offset, size: before, .. } = self.bins.holes[left];
                self.bins.change(left, offset, before + size + after.size);
                left
            }
        };
        if self.boundary != NO_BOUNDARY {
            self.add_to_runs(joined);
        }
    }

    /// Returns the hole of the neighbour `node` if a range freed on the other side of `seam`
    /// coalesces with it.
    #[inline(always)]
    fn coalescible_hole(&self, node: u32, seam: u64) -> Option<u32> {
        let id = self.nodes[node].hole()?;
        (!self.is_edge(seam) && self.bins.holes[id].is_binned()).then_some(id)
    }

    /// Returns whether free ranges stay apart at `offset`.
    #[inline]
    pub(super) fn is_edge(&self, offset: u64) -> bool {
        self.boundary != NO_BOUNDARY && self.is_at_boundary(offset)
    }

    #[cold]
    fn is_at_boundary(&self, offset: u64) -> bool {
        offset.is_multiple_of(self.boundary)
    }

    /// Returns where the range `node` begins; for the sentinel, where the space ends.
    #[inline]
    pub(super) fn start_of(&self, node: u32) -> u64 {
        let node = &self.nodes[node];
        node.hole().map_or(node.word, |id| self.bins.holes[id].offset)
    }

    /// Returns where the used range `node` begins.
    #[inline]
    pub(crate) fn offset_of(&self, node: u32) -> u64 {
        self.nodes[node].word
    }

    /// Returns the bytes of the used range `node`.
    pub(crate) fn range_of(&self, node: u32) -> Range<u64> {
        self.nodes[node].word..self.start_of(self.nodes[node].next)
    }

    /// Returns the length of a used range.
    #[cold]
    pub(crate) fn size_of(&self, placed: Placed) -> u64 {
        self.range_of(placed.node).end - placed.offset
    }

    /// Marks a linked node as a used range that begins at `offset`.
    #[inline]
    pub(super) fn set_used(&mut self, node: u32, offset: u64) {
        self.nodes[node].word = offset;
    }

    /// Marks a linked node as the free range of hole `id`.
    #[inline]
    pub(super) fn set_free(&mut self, node: u32, id: u32) {
        self.nodes[node].word = free_word(id);
    }

    /// Links a used range that begins at `offset` between `node` and the range before it.
    #[inline]
    pub(super) fn link_used_before(&mut self, node: u32, offset: u64) -> u32 {
        let prev = self.nodes[node].prev;
        self.link_between(prev, node, offset)
    }

    /// Links a used range that begins at `offset` between `node` and the range after it.
    #[inline]
    pub(super) fn link_used_after(&mut self, node: u32, offset: u64) -> u32 {
        let next = self.nodes[node].next;
        self.link_between(node, next, offset)
    }

    #[inline(always)]
    fn link_between(&mut self, prev: u32, next: u32, offset: u64) -> u32 {
        let id = self.nodes.insert(RangeNode { word: offset, prev, next });
        self.nodes[prev].next = id;
        self.nodes[next].prev = id;
        id
    }

    /// Returns the sizes of the holes that would appear if the left or the right neighbour of hole
    /// `id` were freed: the neighbour's size plus the free range on its far side. Across the
    /// sentinel, a boundary or a hole that is held back, the far side counts as 0.
    #[inline(always)]
    fn neighbour_sizes(&self, id: u32) -> (u64, u64) {
        let hole = &self.bins.holes[id];
        let RangeNode { prev, next, .. } = self.nodes[hole.node];
        let mut sides = (0, 0);
        let left = self.nodes[prev];
        if prev != SENTINEL && left.hole().is_none() {
            let beyond = self.nodes[left.prev].hole_or_null();
            let free = if self.is_edge(left.word) { 0 } else { self.bins.holes[beyond].size };
            sides.0 = hole.offset - left.word + free;
        }
        let right = self.nodes[next];
        if next != SENTINEL && right.hole().is_none() {
            let behind = self.nodes[right.next];
            let beyond = &self.bins.holes[behind.hole_or_null()];
            let end = select_unpredictable(behind.hole().is_some(), beyond.offset, behind.word);
            let free = if self.is_edge(end) { 0 } else { beyond.size };
            sides.1 = end - hole.end() + free;
        }
        sides
    }

    /// Removes `node` from the chain and frees it.
    #[inline(always)]
    pub(super) fn unlink(&mut self, node: u32) {
        let RangeNode { prev, next, .. } = self.nodes.remove(node);
        self.nodes[prev].next = next;
        self.nodes[next].prev = prev;
    }

    /// Returns the error of a request of at least one byte that failed.
    #[cold]
    pub(crate) fn allocation_error(&mut self, requested: u64) -> AllocError {
        let limit = self.limit();
        if requested > limit {
            return AllocError::TooLarge { requested, limit };
        }
        let largest_free = self.largest_free();
        if requested <= largest_free && !self.has_free_nodes() {
            return AllocError::TooManyRanges { ranges: self.ranges() };
        }
        AllocError::OutOfSpace { requested, free: self.free_bytes(), largest_free }
    }

    /// Moves the end of the space, as the sentinel stores it.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
        self.nodes[SENTINEL].word = capacity;
        self.policy.set_capacity(capacity);
    }
}

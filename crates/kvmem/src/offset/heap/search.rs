//! *Search*: which hole a request is cut from.
//!
//! The heap examines the first entries of the request's own bin, and then the next non-empty bins,
//! in which every hole fits. Where the [placement policy](PlacementPolicy) weighs, it takes an
//! exact hole among those entries; otherwise the policy chooses among the first few that fit, and
//! chooses the end of the hole to cut from. Elsewhere the first hole that fits is taken. Sizes are
//! never rounded.

use super::bins::Hole;
use super::chunked_table::NIL;
use super::heap::Heap;
use super::ranges::Placed;
use crate::offset::placement::HoleEnd;
#[cfg(doc)]
use crate::offset::placement::PlacementPolicy;

/// Entries of the request's own bin that are examined before the next bin up.
pub(super) const FLOOR_ENTRIES: usize = 8;
/// Exact holes that are compared with each other. Comparing more gains nothing measurable.
const EXACT_ENTRIES: usize = 4;
/// Exact holes that are examined for an aligned one when no nodes are left.
const MAX_EXACT_SCAN: usize = 1024;
/// Spaces with more than 1/`SCARCE_PART` of their bytes free place requests in the first hole
/// that fits: no choice makes a later request fail there.
const SCARCE_PART: u64 = 2;

impl Heap {
    /// Allocates `size` bytes from the binned holes: from the best of a few where that pays, or
    /// else from the first one that fits.
    #[inline(always)]
    pub(super) fn fit(&mut self, size: u64) -> Option<Placed> {
        let weigh = self.weighs();
        let lists = self.ranges.bins().lists();
        let own = lists.list_of(size);
        let (mut id, mut found) = (lists.first(own), NIL);
        for _ in 0..FLOOR_ENTRIES {
            if id == NIL {
                break;
            }
            let hole = self.ranges.bins()[id];
            if hole.size == size {
                return Some(self.take_exact(id, hole, weigh));
            }
            if hole.size > size && found == NIL {
                found = id;
                // Each further entry may be a cache miss, and few are exact.
                if !weigh {
                    break;
                }
            }
            id = hole.next;
        }
        if found == NIL {
            found = match lists.above(own) {
                Some(list) => lists.first(list),
                None => self.last_of(own, size)?,
            };
        }
        if !weigh {
            return Some(self.ranges.take(found, size, HoleEnd::Low));
        }
        let ranges = self.ranges.chain().live();
        self.policy.refresh(ranges);
        let candidates = self.policy.candidates(size, ranges);
        if candidates > 1 {
            let (id, end) = self.best_of(candidates, found, size);
            return Some(self.ranges.take(id, size, end));
        }
        let hole = self.ranges.bins()[found];
        if hole.size == size {
            return Some(self.ranges.take_whole(found));
        }
        let node = self.ranges.chain()[hole.node];
        let end = self.policy.better_end(hole.size - size, self.ranges.sizes_around(&hole, node));
        Some(self.ranges.take_part(found, hole, node, size, end))
    }

    /// Allocates `size` bytes from the binned holes, of which one was just opened.
    #[cold]
    #[inline(never)]
    pub(super) fn fit_opened(&mut self, size: u64) -> Option<Placed> {
        self.fit(size)
    }

    /// Returns whether holes are compared: where bytes are scarce, in spaces in which the
    /// [policy](PlacementPolicy) gains by it.
    #[inline(always)]
    fn weighs(&mut self) -> bool {
        if self.free_bytes() > self.capacity() / SCARCE_PART {
            return false;
        }
        let ranges = self.ranges.chain().live();
        let weighs = self.policy.weighs(ranges);
        if !weighs {
            // Sizes may have become fewer.
            self.policy.refresh(ranges);
        }
        weighs
    }

    /// Allocates an exact hole, whose record has been read, or a better one of the same size.
    #[inline(always)]
    fn take_exact(&mut self, id: u32, hole: Hole, weigh: bool) -> Placed {
        if weigh && self.policy.weighs_exact(hole.size, self.ranges.chain().live()) {
            let best = self.best_exact(id, hole.size);
            return self.ranges.take_whole(best);
        }
        self.ranges.take_read(id, hole)
    }

    /// Returns a hole of at least `size` bytes behind the first entries of the request's own bin.
    #[cold]
    fn last_of(&self, own: u32, size: u64) -> Option<u32> {
        let bins = self.ranges.bins();
        if bins.lists().is_uniform(own) {
            return None;
        }
        bins.lists().holes_of(own).skip(FLOOR_ENTRIES).find(|&id| bins[id].size >= size)
    }

    /// Returns the best of the first `candidates` holes that fit, starting with `found`, and the
    /// end of it to cut from.
    // Out of line: few requests come here.
    #[inline(never)]
    fn best_of(&self, candidates: usize, found: u32, size: u64) -> (u32, HoleEnd) {
        let weigh = |id: u32| {
            self.policy.weigh(self.ranges.bins()[id].size, size, || self.ranges.neighbour_sizes(id))
        };
        let (mut best, mut end) = (f32::NEG_INFINITY, HoleEnd::Low);
        let (mut id, mut chosen) = (found, found);
        for further in (0..candidates).rev() {
            let (score, its_end) = weigh(id);
            if score > best {
                (best, end, chosen) = (score, its_end, id);
            }
            id = if further > 0 { self.next_fit(id, size) } else { NIL };
            if id == NIL {
                break;
            }
        }
        (chosen, end)
    }

    /// Returns the best of the first exact holes, `found` being one of them: the one that its
    /// neighbours lose least by.
    // Out of line: few requests come here.
    #[inline(never)]
    fn best_exact(&mut self, found: u32, size: u64) -> u32 {
        self.policy.refresh(self.ranges.chain().live());
        let bins = self.ranges.bins();
        let weigh = |id: u32| self.policy.weigh_exact(size, self.ranges.neighbour_sizes(id));
        let (mut best, mut chosen) = (weigh(found), found);
        let others = bins.lists().after(found).take(EXACT_ENTRIES - 1);
        for id in others.filter(|&id| bins[id].size == size) {
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
        let (bins, lists) = (self.ranges.bins(), self.ranges.bins().lists());
        // Some holes in the request's own bin are too short.
        let mut further = lists.after(id).take(FLOOR_ENTRIES);
        if let Some(next) = further.find(|&next| bins[next].size >= size) {
            return next;
        }
        lists.above(lists.list_id_of(id)).map_or(NIL, |list| lists.first(list))
    }

    /// Allocates `size` bytes from the binned holes, or from a run of which it opens a segment.
    pub(super) fn fit_or_open(&mut self, size: u64) -> Option<Placed> {
        let placed = self.fit_opened(size);
        placed.or_else(|| self.ranges.open_segment(size).then(|| self.fit_opened(size)).flatten())
    }

    /// Allocates a free range of exactly this size that begins at a multiple of `align`, when no
    /// nodes are left for a remainder.
    #[cold]
    pub(super) fn fit_whole(&mut self, size: u64, align: u64) -> Option<Placed> {
        self.coalesce();
        let bins = self.ranges.bins();
        let fits = |hole: &Hole| hole.size == size && hole.offset.is_multiple_of(align);
        let own = bins.lists().list_of(size);
        let binned = bins.lists().holes_of(own).take(MAX_EXACT_SCAN).find(|&id| fits(&bins[id]));
        let id = binned.or_else(|| self.ranges.open_whole_run(size, align))?;
        Some(self.ranges.take_whole(id))
    }
}

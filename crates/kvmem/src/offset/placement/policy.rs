//! *Placement policy*: which of the holes that fit, and which end of it.
//!
//! A hole's value is its [renewal value](super::renewal) *U*: the bytes of current traffic that it
//! is expected to absorb.
//!
//! ## Choice
//!
//! Splitting a hole *h* for a request *s* leaves *r = h − s* next to one of two neighbours. Let
//! *mL*, *mR* be the holes that would appear if the left or the right neighbour were freed. Cutting
//! from the low end leaves *r* on the right, which changes the value of these holes by
//!
//! ```text
//! gain(low)  = U(mL)     − U(mL + h)  +  U(mR + r) − U(mR + h)
//! gain(high) = U(mL + r) − U(mL + h)  +  U(mR)     − U(mR + h)
//! ```
//!
//! The policy takes the end with the larger gain, and among the holes compared the one with the
//! largest `U(r) − U(h) + 0.2·(U(h) + gain)`. Where sizes are few, it compares the first four holes
//! that fit; where they are many, the first two for small requests and the first alone for larger
//! ones, and for all where they are evenly spread.
//!
//! An exact hole leaves no remainder and is preferred to all others. A small space compares several
//! exact holes: while one size replaces another, an exact hole for one may be worth more to the
//! other, together with a neighbour.
//!
//! ## Updating the model
//!
//! U is computed anew from recent requests at intervals: from the last hundred where sizes are few,
//! which shows a change of sizes soon, and from the last thousand where they are many. The
//! intervals grow while traffic is steady.
//!
//! ## Slots
//!
//! In a space that holds a handful of objects of slightly different sizes, the policy divides the
//! space into [slots](super::slot_length).
//!
//! All of it is derived from the traffic; nothing is tuned to a workload.

use super::placement::{HoleEnd, Placement};
use super::recent_sizes::{RECENT, RecentSizes};
use super::renewal::Renewal;
use super::slot_length::{SLOTS_MAX, slot_length};

/// Returns the end with the larger gain. The high end must be ahead by more than rounding, which
/// lets an empty space fill in address order.
#[inline]
fn end_of(low: f32, high: f32) -> HoleEnd {
    if high > low + low * 1e-6 { HoleEnd::High } else { HoleEnd::Low }
}

/// Holes compared where sizes are few.
const CANDIDATES: usize = 4;
/// Holes compared where sizes are many. More gain nothing measurable and cost 15 ns each.
const CANDIDATES_OF_MANY: usize = 2;
/// Where sizes are many, requests up to 1/`WEIGHED_PART` of the largest compare holes. Others take
/// the first hole that fits.
const WEIGHED_PART: u64 = 5;
/// Many sizes are evenly spread if their mean is more than 1/`EVEN_PART` of the largest. No request
/// compares holes then: that gains 0.0006 of the space, and takes a fifteenth of the time.
const EVEN_PART: u64 = 3;

/// Ranges, used and free, of a space in which it matters which hole is cut. Where there are more,
/// some hole always fits well: with a thousand ranges of any size alive, choosing gains a
/// thousandth of the space, with ten thousand nothing.
const SMALL_SPACE_RANGES: u32 = 1024;
/// Sizes in traffic for which holes are compared in a space of more ranges, and how many. While one
/// of two sizes replaces the other, that gains 2 % of the space; with sixteen sizes, nothing. In
/// still larger spaces each look at a hole's neighbours is some cache misses.
const MAX_SIZES_OF_LARGE: usize = 8;
const LARGE_SPACE_RANGES: u32 = 1 << 17;
/// Number of ranges up to which exact holes are compared. The metadata then stays in the cache. In
/// larger spaces each look at a hole's neighbours costs one or two cache misses, and the choice
/// gains little.
const EXACT_RANGES: u32 = 1 << 14;

/// Number of latest requests used where sizes are few, which shows a change of sizes soon.
const LATEST: u64 = 128;
/// Requests between two model updates where sizes are many, and how many times as many when update
/// after update finds the traffic steady.
const MODEL_INTERVAL: u64 = 8192;
const STEADY_INTERVALS: u64 = 8;
/// Traffic is steady while its mean differs by at most 1/`STEADY_PART` from the mean at the last
/// update.
const STEADY_PART: u64 = 8;
/// Requests between two model updates for each size, where sizes are few and an update is less
/// work.
const MODEL_INTERVAL_PER_SIZE: u64 = 64;
/// Requests between two reviews of the small limit and of slots.
const REVIEW_EVERY: u64 = 1024;
/// Weight of the gain at the neighbours against the hole's own value.
const NEIGHBOUR_WEIGHT: f32 = 0.2;

/// The state of the policy: recent requests, and what is derived from them.
#[derive(Clone)]
pub(crate) struct PlacementPolicy {
    placement: Placement,
    recent: RecentSizes,
    /// Number of requests at which the small limit is next reviewed.
    review_at: u64,
    /// Requests below this many bytes are small; 0 while a small-object region does not pay.
    small_below: u64,
    /// Mean of the recent sizes.
    mean: u64,
    /// Length of the slots, or 0.
    slot: u64,
    capacity: u64,
    /// Longest request that compares holes.
    max_weighed: u64,
    /// Number of holes that it compares.
    candidates: usize,
    /// Number of ranges up to which holes are weighed.
    max_ranges: u32,
    /// Whether sizes are few, but more than one.
    several_sizes: bool,
    renewal: Renewal,
    /// Number of requests at which `renewal` is next updated.
    update_at: u64,
    /// Mean of the recent sizes at the last update.
    model_mean: u64,
    /// Requests between the last update and the next.
    model_interval: u64,
}

impl PlacementPolicy {
    pub(crate) fn new(placement: Placement, capacity: u64) -> Self {
        PlacementPolicy {
            placement,
            recent: RecentSizes::new(),
            review_at: 16,
            small_below: 0,
            mean: 0,
            slot: 0,
            capacity,
            max_weighed: u64::MAX,
            candidates: CANDIDATES,
            max_ranges: if placement == Placement::Renewal { SMALL_SPACE_RANGES } else { 0 },
            several_sizes: false,
            renewal: Renewal::new(),
            update_at: if placement == Placement::Renewal { 0 } else { u64::MAX },
            model_mean: 0,
            model_interval: MODEL_INTERVAL,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.recent.bytes() + self.renewal.bytes()
    }

    /// Returns how many of the holes that fit a request of `size` bytes are compared in a space of
    /// `ranges` ranges.
    #[inline]
    pub(crate) fn candidates(&self, size: u64, ranges: u32) -> usize {
        if size > self.max_weighed || !self.weighs(ranges) { 1 } else { self.candidates }
    }

    /// Returns whether holes are weighed in a space of `ranges` ranges, used and free.
    #[inline(always)]
    pub(crate) fn weighs(&self, ranges: u32) -> bool {
        ranges <= self.max_ranges
    }

    /// Returns whether exact holes are compared. With several sizes, an exact hole may be worth
    /// more to the next request for another size, together with a neighbour. Small holes are worth
    /// too little.
    #[inline]
    pub(crate) fn weighs_exact(&self, size: u64, ranges: u32) -> bool {
        self.several_sizes && ranges <= EXACT_RANGES && !self.is_small(size)
    }

    /// Returns whether a request is small.
    #[inline]
    pub(crate) fn is_small(&self, size: u64) -> bool {
        size < self.small_below
    }

    /// Returns whether the next request is likely to be for `size`, as the last one was.
    #[inline]
    pub(crate) fn expects(&self, size: u64) -> bool {
        self.recent.latest() == size
    }

    /// Records a request that succeeded.
    #[inline]
    pub(crate) fn record(&mut self, size: u64) {
        if self.recent.record(size) == self.review_at {
            self.review();
        }
    }

    pub(crate) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// Returns the slot length, if there are slots and a request of `size` bytes belongs into one.
    #[inline]
    pub(crate) fn slot(&self, size: u64) -> Option<u64> {
        // Few spaces have slots. Objects below half a slot are not the ones that the slots are for.
        (self.slot > 0 && self.is_for_slot(size)).then_some(self.slot)
    }

    #[cold]
    fn is_for_slot(&self, size: u64) -> bool {
        size <= self.slot && size > self.slot / 2
    }

    /// Returns the number of requests that succeeded so far.
    pub(crate) fn seen(&self) -> u64 {
        self.recent.seen()
    }

    /// Returns the mean of the recent request sizes.
    pub(crate) fn mean(&self) -> u64 {
        self.mean
    }

    #[cold]
    fn review(&mut self) {
        if self.placement != Placement::Renewal {
            self.review_at = u64::MAX;
            return;
        }
        let (recent, seen) = (self.recent.stored(), self.recent.seen());
        let (largest, mean) = self.recent.largest_and_mean();
        let handful = self.capacity / largest <= SLOTS_MAX;
        let small_below = mean / 16;
        let small = recent.iter().filter(|&&size| size < small_below).count();
        let worthwhile = small * 10 > recent.len();
        // Where slots may apply, this must show soon.
        let max = if handful { REVIEW_EVERY / 4 } else { REVIEW_EVERY };
        self.review_at = seen + seen.clamp(16, max);
        self.mean = mean;
        if !self.is_steady() {
            self.update_at = self.update_at.min(seen + MODEL_INTERVAL);
        }
        self.small_below = if worthwhile { small_below } else { 0 };
        self.slot = if handful {
            let large = recent.iter().copied().filter(|&size| size >= self.small_below);
            slot_length(large, self.slot)
        } else {
            0
        };
    }

    /// Updates the model from recent traffic, if it is out of date, in a space of `ranges` ranges.
    #[inline]
    pub(crate) fn refresh(&mut self, ranges: u32) {
        if self.recent.seen() >= self.update_at {
            self.update_model(ranges);
        }
    }

    /// Returns the score of cutting `size` bytes from a hole of `hole_size` bytes, and the end to
    /// cut from. `neighbour_sizes` returns the holes that would appear if the left or the right
    /// neighbour were freed.
    #[inline(always)]
    pub(crate) fn weigh(
        &self,
        hole_size: u64,
        size: u64,
        neighbour_sizes: impl Fn() -> (u64, u64),
    ) -> (f32, HoleEnd) {
        let value = |size: u64| self.renewal.value(size);
        let (left, right) = neighbour_sizes();
        let rest = hole_size - size;
        let (low, high) = self.values_by_end(rest, (left, right));
        let before = value(left + hole_size) + value(right + hole_size);
        let gain = low.max(high) - before;
        (
            value(rest) - value(hole_size) + NEIGHBOUR_WEIGHT * (value(hole_size) + gain),
            end_of(low, high),
        )
    }

    /// Returns the score of taking a hole of exactly `size` bytes, for comparison with others of
    /// that size.
    #[inline(always)]
    pub(crate) fn weigh_exact(&self, size: u64, (left, right): (u64, u64)) -> f32 {
        let value = |size: u64| self.renewal.value(size);
        let loss = |side: u64| value(side) - value(side + size);
        loss(left) + loss(right)
    }

    /// Returns the end of a hole to cut from if `rest` bytes of it remain. `neighbour_sizes` are
    /// the holes that would appear if the left or the right neighbour were freed.
    #[inline(always)]
    pub(crate) fn better_end(&self, rest: u64, neighbour_sizes: (u64, u64)) -> HoleEnd {
        let (low, high) = self.values_by_end(rest, neighbour_sizes);
        end_of(low, high)
    }

    /// Returns the value of the holes that would appear if a neighbour were freed, after a cut from
    /// the low end and from the high end.
    #[inline(always)]
    fn values_by_end(&self, rest: u64, (left, right): (u64, u64)) -> (f32, f32) {
        let value = |size: u64| self.renewal.value(size);
        (value(left) + value(right + rest), value(left + rest) + value(right))
    }

    #[cold]
    fn update_model(&mut self, ranges: u32) {
        let small_below = self.small_below;
        let last = |n: u64| self.recent.last(n).filter(move |&size| size >= small_below);
        self.renewal.update_model(last(LATEST), last(RECENT as u64));
        (self.max_weighed, self.candidates) = match self.renewal.few_sizes() {
            Some(_) => (u64::MAX, CANDIDATES),
            // Evenly spread: the remainders are, too.
            None if self.mean > self.renewal.largest() / EVEN_PART => (0, 1),
            None => (self.renewal.largest() / WEIGHED_PART, CANDIDATES_OF_MANY),
        };
        let sizes = self.renewal.few_sizes().unwrap_or(usize::MAX);
        self.several_sizes = self.renewal.few_sizes().is_some_and(|sizes| sizes > 1);
        let choose_everywhere = sizes <= MAX_SIZES_OF_LARGE;
        self.max_ranges = if choose_everywhere { LARGE_SPACE_RANGES } else { SMALL_SPACE_RANGES };
        self.update_at = match self.recent.seen() {
            0..16 => 16,
            16..64 => 64,
            64..256 => 256,
            256..1024 => 1024,
            seen => {
                self.model_interval = match self.renewal.few_sizes() {
                    Some(sizes) if self.weighs(ranges) => {
                        MODEL_INTERVAL_PER_SIZE * (sizes as u64).max(4)
                    }
                    _ if self.is_steady() => 2 * self.model_interval,
                    _ => MODEL_INTERVAL,
                };
                self.model_interval = self.model_interval.min(STEADY_INTERVALS * MODEL_INTERVAL);
                seen + self.model_interval
            }
        };
        self.model_mean = self.mean;
    }

    /// Returns whether the mean of recent traffic is close to that at the last update.
    fn is_steady(&self) -> bool {
        self.mean.abs_diff(self.model_mean) <= self.model_mean / STEADY_PART
    }
}

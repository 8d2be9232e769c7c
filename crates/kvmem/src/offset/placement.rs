//! *Placement*: which of the holes that fit, and which end of it.
//!
//! A hole is weighed by its [renewal value](super::renewal) *U*: the bytes of current traffic that
//! it can be expected to absorb.
//!
//! ## Choice
//!
//! Splitting a hole *h* for a request *s* leaves *r = h − s* beside one of two neighbours. Let
//! *mL*, *mR* be the holes that would appear if the left or right neighbour died. Cutting from the
//! low end leaves *r* on the right, so the futures change by
//!
//! ```text
//! gain(low)  = U(mL)     − U(mL + h)  +  U(mR + r) − U(mR + h)
//! gain(high) = U(mL + r) − U(mL + h)  +  U(mR)     − U(mR + h)
//! ```
//!
//! The end with the larger gain is taken; among the holes weighed, the one with the largest
//! `U(r) − U(h) + 0.2·(U(h) + gain)`. The first four that fit are weighed where sizes are few;
//! where they are many, the first two for small requests, and for larger ones the first alone.
//!
//! An exact hole leaves nothing and wins over all others. In a small space it is the best of
//! several if there are several; for while one size gives way to another, an exact hole of the one
//! may be worth more to the other, together with a neighbour.
//!
//! ## Learning
//!
//! U is learnt anew now and then from recent requests: from the last hundred where sizes are few,
//! so that a change of sizes shows soon, from the last thousand where they are many; and the more
//! seldom the longer traffic is steady.
//!
//! ## Slots
//!
//! Where the space holds a handful of objects whose sizes differ a little, no hole is ever like
//! another, and chance decides whether the last object fits. There the space is thought of as slots
//! of the largest recent size: an object is put at the start of a free slot if there is one, and
//! treated like any other if not.
//!
//! All of it is derived from the traffic; nothing is tuned to a workload.

use super::renewal::Renewal;

/// How an [`OffsetAllocator`](super::OffsetAllocator) chooses among the holes that fit a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// By renewal value, with a nursery for small objects: most live bytes under mixed sizes.
    #[default]
    Renewal,
    /// The tightest of the first four holes that fit, cut from its low end: fewest instructions.
    BestFit,
}

/// An end of a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoleEnd {
    Low,
    High,
}

/// The end with the larger gain; the low one unless the other is ahead by more than rounding, so
/// that an empty space fills in address order.
#[inline]
fn end_of(low: f32, high: f32) -> HoleEnd {
    if high > low + low * 1e-6 { HoleEnd::High } else { HoleEnd::Low }
}

/// Holes to choose from where sizes are few.
const CANDIDATES: usize = 4;
/// Where they are many: weighing more of them gains nothing that can be measured, and costs 15 ns
/// each.
const CANDIDATES_OF_MANY: usize = 2;
/// Where they are many, requests up to this part of the largest choose, others take the first hole
/// that fits.
const WEIGHED_PART: u64 = 5;

/// Requests remembered.
const RECENT: usize = 1024;
/// As many of the latest requests are learnt from where sizes are few: so a change of sizes shows
/// soon.
const LATEST: u64 = 128;
/// Requests between two lessons where sizes are many: the least, and the most when lesson after
/// lesson finds the traffic steady.
const MODEL_INTERVAL: u64 = 8192;
const MODEL_INTERVAL_STEADY: u64 = 8 * MODEL_INTERVAL;
/// Traffic is steady while its mean stays within this part of the mean last learnt.
const STEADY_PART: u64 = 8;
/// Where sizes are few a lesson is less work; requests between two for each of the sizes.
const MODEL_INTERVAL_PER_SIZE: u64 = 64;
/// Requests between two reviews of what is small, and of slots.
const REVIEW_EVERY: u64 = 1024;
/// Slots are for spaces that hold at most so many objects.
const SLOTS_MAX: u64 = 20;
/// Up to so many different sizes are exact sizes.
const EXACT_SIZES: usize = 8;
/// Weight of the neighbours' futures against the hole's own.
const NEIGHBOUR_WEIGHT: f32 = 0.2;

/// The policy's memory: recent requests, and what follows from them.
pub(super) struct PlacementPolicy {
    placement: Placement,
    /// The last requests, oldest overwritten first.
    recent: Box<[u64; RECENT]>,
    /// Requests so far.
    seen: u64,
    /// `seen` at which the small limit is decided again.
    review_at: u64,
    /// Requests below this many bytes are small; 0 while they are not worth a nursery.
    small_below: u64,
    /// Mean of the recent sizes.
    mean: u64,
    /// Length of the slots, or 0.
    slot: u64,
    capacity: u64,
    /// Longest request that chooses among holes.
    max_weighed: u64,
    /// Among how many.
    candidates: usize,
    /// Sizes are few, but more than one.
    several_sizes: bool,
    renewal: Renewal,
    /// `seen` at which `renewal` is out of date.
    update_at: u64,
    /// Mean of the recent sizes at the last lesson.
    model_mean: u64,
    /// Requests between the last lesson and the next, where sizes are many.
    model_interval: u64,
}

impl PlacementPolicy {
    pub(super) fn new(placement: Placement, capacity: u64) -> Self {
        PlacementPolicy {
            placement,
            recent: Box::new([0; RECENT]),
            seen: 0,
            review_at: 16,
            small_below: 0,
            mean: 0,
            slot: 0,
            capacity,
            max_weighed: u64::MAX,
            candidates: CANDIDATES,
            several_sizes: false,
            renewal: Renewal::new(),
            update_at: if placement == Placement::Renewal { 0 } else { u64::MAX },
            model_mean: 0,
            model_interval: MODEL_INTERVAL,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.recent) + self.renewal.bytes()
    }

    /// How many of the holes that fit a request of `size` bytes are weighed.
    #[inline]
    pub(super) fn candidates(&self, size: u64) -> usize {
        if size > self.max_weighed { 1 } else { self.candidates }
    }

    /// Whether exact holes are weighed against each other: with several sizes, an exact hole may be
    /// worth more to the next request for another size, together with a neighbour. Small ones
    /// are worth too little.
    #[inline]
    pub(super) fn weighs_exact(&self, size: u64) -> bool {
        self.several_sizes && !self.is_small(size)
    }

    /// Whether a request is a small one.
    #[inline]
    pub(super) fn is_small(&self, size: u64) -> bool {
        size < self.small_below
    }

    /// Whether the next request is likely to be for `size`, as the last one was.
    #[inline]
    pub(super) fn expects(&self, size: u64) -> bool {
        self.recent[self.seen.wrapping_sub(1) as usize % RECENT] == size
    }

    /// Remembers a request that was granted.
    #[inline]
    pub(super) fn record(&mut self, size: u64) {
        self.recent[self.seen as usize % RECENT] = size;
        self.seen += 1;
        if self.seen == self.review_at {
            self.review();
        }
    }

    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// The slot length, if there are slots and a request of `size` bytes should be put into one.
    #[inline]
    pub(super) fn slot(&self, size: u64) -> Option<u64> {
        // Less than a slot's half is not one of the objects that the slots are for.
        (size <= self.slot && size > self.slot / 2).then_some(self.slot)
    }

    /// Requests granted so far.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Mean of the recent request sizes.
    pub(super) fn mean(&self) -> u64 {
        self.mean
    }

    fn remembered(&self) -> &[u64] {
        &self.recent[..self.seen.min(RECENT as u64) as usize]
    }

    #[cold]
    fn review(&mut self) {
        if self.placement != Placement::Renewal {
            self.review_at = u64::MAX;
            return;
        }
        let recent = self.remembered();
        let largest = recent.iter().copied().max().unwrap_or(0).max(1);
        let handful = self.capacity / largest <= SLOTS_MAX;
        let mean = if largest < u64::MAX / RECENT as u64 {
            recent.iter().sum::<u64>() / recent.len() as u64
        } else {
            (recent.iter().map(|&size| u128::from(size)).sum::<u128>() / recent.len() as u128)
                as u64
        };
        let small_below = mean / 16;
        let small = recent.iter().filter(|&&size| size < small_below).count();
        let worthwhile = small * 10 > recent.len();
        // Where slots may be called for, it has to be seen soon.
        let most = if handful { REVIEW_EVERY / 4 } else { REVIEW_EVERY };
        self.review_at = self.seen + self.seen.clamp(16, most);
        self.mean = mean;
        if !self.is_steady() {
            self.update_at = self.update_at.min(self.seen + MODEL_INTERVAL);
        }
        self.small_below = if worthwhile { small_below } else { 0 };
        self.slot = if handful { self.decide_slot() } else { 0 };
    }

    /// The slot length that the recent large sizes call for, or 0.
    fn decide_slot(&self) -> u64 {
        let large = || self.remembered().iter().copied().filter(|&size| size >= self.small_below);
        let (Some(least), Some(most)) = (large().min(), large().max()) else { return 0 };
        if most > least + least / 4 {
            return 0;
        }
        // A few exact sizes find exact holes; slots would only keep them apart.
        let mut distinct = [0; EXACT_SIZES];
        let mut found = 0;
        for size in large() {
            if !distinct[..found].contains(&size) {
                if found == EXACT_SIZES {
                    // The same slots as before, unless sizes have outgrown them or shrunk a good
                    // deal.
                    return if most <= self.slot && most > self.slot - self.slot / 32 {
                        self.slot
                    } else {
                        most
                    };
                }
                distinct[found] = size;
                found += 1;
            }
        }
        0
    }

    /// Learns the recent traffic, if what it knows is out of date.
    #[inline]
    pub(super) fn refresh(&mut self) {
        if self.seen >= self.update_at {
            self.update_model();
        }
    }

    /// How good it is to cut `size` bytes from a hole of `room`, and from which end. `neighbour_sizes` tells
    /// what would appear if the hole's left or right neighbour died.
    #[inline(always)]
    pub(super) fn weigh(
        &self,
        room: u64,
        size: u64,
        neighbour_sizes: impl Fn() -> (u64, u64),
    ) -> (f32, HoleEnd) {
        if self.placement == Placement::BestFit {
            return (-(room as f32), HoleEnd::Low);
        }
        let value = |size: u64| self.renewal.value(size);
        let (left, right) = neighbour_sizes();
        let rest = room - size;
        let (low, high) = self.values_by_end(rest, (left, right));
        let before = value(left.saturating_add(room)) + value(right.saturating_add(room));
        let gain = low.max(high) - before;
        (value(rest) - value(room) + NEIGHBOUR_WEIGHT * (value(room) + gain), end_of(low, high))
    }

    /// How good it is to take a hole of just `size` bytes, for comparison with others of that size.
    #[inline(always)]
    pub(super) fn weigh_exact(&self, size: u64, (left, right): (u64, u64)) -> f32 {
        let value = |size: u64| self.renewal.value(size);
        let lost = |side: u64| value(side) - value(side.saturating_add(size));
        lost(left) + lost(right)
    }

    /// The end of a hole to cut from if `rest` bytes of it are left, and `neighbour_sizes` would appear if
    /// its left or right neighbour died.
    #[inline(always)]
    pub(super) fn better_end(&self, rest: u64, neighbour_sizes: (u64, u64)) -> HoleEnd {
        let (low, high) = self.values_by_end(rest, neighbour_sizes);
        end_of(low, high)
    }

    /// What would be left to absorb traffic after a neighbour's death, if cut from the low end and
    /// from the high one.
    #[inline(always)]
    fn values_by_end(&self, rest: u64, (left, right): (u64, u64)) -> (f32, f32) {
        let value = |size: u64| self.renewal.value(size);
        (
            value(left) + value(right.saturating_add(rest)),
            value(left.saturating_add(rest)) + value(right),
        )
    }

    #[cold]
    fn update_model(&mut self) {
        let (recent, small_below) = (&self.recent, self.small_below);
        let last = |n: u64| {
            let sizes =
                (self.seen.saturating_sub(n)..self.seen).map(|i| recent[i as usize % RECENT]);
            sizes.filter(move |&size| size >= small_below)
        };
        self.renewal.update_model(last(LATEST), last(RECENT as u64));
        (self.max_weighed, self.candidates) = match self.renewal.few_sizes() {
            Some(_) => (u64::MAX, CANDIDATES),
            None => (self.renewal.largest() / WEIGHED_PART, CANDIDATES_OF_MANY),
        };
        self.several_sizes = self.renewal.few_sizes().is_some_and(|sizes| sizes > 1);
        self.update_at = match self.seen {
            0..16 => 16,
            16..64 => 64,
            64..256 => 256,
            256..1024 => 1024,
            seen => match self.renewal.few_sizes() {
                Some(sizes) => seen + MODEL_INTERVAL_PER_SIZE * (sizes as u64).max(4),
                None => {
                    let longer =
                        if self.is_steady() { 2 * self.model_interval } else { MODEL_INTERVAL };
                    self.model_interval = longer.min(MODEL_INTERVAL_STEADY);
                    seen + self.model_interval
                }
            },
        };
        self.model_mean = self.mean;
    }

    /// Whether recent traffic is much like what was learnt last, going by its mean.
    fn is_steady(&self) -> bool {
        self.mean.abs_diff(self.model_mean) <= self.model_mean / STEADY_PART
    }
}

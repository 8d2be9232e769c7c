//! *Placement*: which of the holes that fit, and which end of it.
//!
//! ## Renewal value
//!
//! A hole of size *m* is worth the bytes of current traffic that it can be expected to absorb. Let *p* be the
//! distribution of the recent request sizes, *F* its cumulative form. The next request is of size *s* with
//! probability *p(s)*; if it fits, *s* bytes are absorbed and a hole of *m − s* is left, otherwise the hole waits,
//! at a discount γ:
//!
//! ```text
//!            Σ_{s ≤ m} p(s) · (s + U(m − s))
//! U(m)  =   ─────────────────────────────────
//!                1 − γ · (1 − F(m))
//! ```
//!
//! This is a renewal equation, solved from small *m* to large on a grid of 64 points up to the largest recent size
//! and on to four times that; beyond, *U* grows as it did over the last size.
//!
//! ## Choice
//!
//! An exact hole wins without asking. Splitting a hole *h* for a request *s* leaves *r = h − s* beside one of two
//! neighbours. Let *mL*, *mR* be the holes that would appear if the left or right neighbour died. Cutting from the
//! low end leaves *r* on the right, so the futures change by
//!
//! ```text
//! gain(low)  = U(mL)     − U(mL + h)  +  U(mR + r) − U(mR + h)
//! gain(high) = U(mL + r) − U(mL + h)  +  U(mR)     − U(mR + h)
//! ```
//!
//! The end with the larger gain is taken; among the first four holes that fit, the one with the largest
//! `U(r) − U(h) + 0.2·(U(h) + gain)`.
//!
//! ## Slots
//!
//! Where the space holds a handful of objects whose sizes differ a little, no hole is ever like another, and chance decides
//! whether the last object fits. There the space is thought of as slots of the largest recent size: an object is put at the
//! start of a free slot if there is one, and treated like any other if not.
//!
//! All of it is derived from the traffic; nothing is tuned to a workload. Where requests fit exactly, which is
//! the rule when sizes are few, none of it runs.

/// How an [`OffsetAllocator`](super::OffsetAllocator) chooses among the holes that fit a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// By renewal value, with a nursery for small objects: most live bytes under mixed sizes.
    #[default]
    Renewal,
    /// The tightest of the first few holes that fit, cut from its low end: fewest instructions.
    BestFit,
}

/// An end of a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Low,
    High,
}

const PARTS: u64 = 4;
const CANDIDATES: usize = 2;

/// The first few holes that fit, in the order they were found.
pub(super) struct Candidates {
    holes: [(u32, u64); CANDIDATES],
    len: usize,
    wanted: usize,
}

impl Candidates {
    /// Adds one; says whether that was the last wanted.
    #[inline]
    pub(super) fn add(&mut self, id: u32, size: u64) -> bool {
        self.holes[self.len] = (id, size);
        self.len += 1;
        self.is_full()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len >= self.wanted
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn tightest(&self) -> u32 {
        let all = &self.holes[..self.len];
        all.iter().min_by_key(|(_, size)| size).expect("the search adds a candidate or gives up").0
    }
}

/// Grid points up to the largest recent size.
const GRID: usize = 256;
/// Grid points in all.
const POINTS: usize = 4 * GRID + 1;
/// Requests remembered.
const RECENT: usize = 1024;
/// A rebuild is due after `REBUILD_EVERY` requests of all sizes; with a few sizes it is less work, and due sooner in
/// proportion, but never counted as less than this of `GRID`.
const LEAST_EFFORT: u64 = 8;
/// Requests between two rebuilds of U.
const REBUILD_EVERY: u64 = 16384;
/// Requests between two reviews of what is small, and of slots.
const REVIEW_EVERY: u64 = 1024;
/// Slots are for spaces that hold at most so many objects.
const SLOTS_MAX: u64 = 20;
/// Up to so many different sizes are exact sizes.
const EXACT_SIZES: usize = 8;
/// What waiting costs: the weight of a hole's value after a request that does not fit.
const GAMMA: f32 = 0.7;
/// Weight of the neighbours' futures against the hole's own.
const NEIGHBOURS: f32 = 0.2;

/// The policy's memory: recent requests, and what follows from them.
pub(super) struct Policy {
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
    /// U at the points of the grid.
    value: Box<[f32; POINTS]>,
    /// Requests up to this many bytes choose among several holes.
    several_below: u64,
    /// Entries of `value` a byte, times 2^64.
    scale: u64,
    /// `seen` at which `value` is out of date.
    stale_at: u64,
}

impl Policy {
    pub(super) fn new(placement: Placement, capacity: u64) -> Self {
        Policy {
            placement,
            recent: Box::new([0; RECENT]),
            seen: 0,
            review_at: 16,
            small_below: 0,
            mean: 0,
            slot: 0,
            capacity,
            value: Box::new([0.0; POINTS]),
            several_below: u64::MAX,
            scale: 0,
            stale_at: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.recent) + size_of_val(&*self.value)
    }

    /// An empty list for a request of `size` bytes.
    #[inline]
    pub(super) fn candidates(&self, size: u64) -> Candidates {
        let wanted = if size > self.several_below { 1 } else { CANDIDATES };
        Candidates { holes: [(0, 0); CANDIDATES], len: 0, wanted }
    }

    pub(super) fn weighs(&self) -> bool {
        self.placement == Placement::Renewal
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

    /// Mean of the recent request sizes.
    pub(super) fn mean(&self) -> u64 {
        self.mean
    }

    fn remembered(&self) -> &[u64] {
        &self.recent[..self.seen.min(RECENT as u64) as usize]
    }

    #[cold]
    fn review(&mut self) {
        self.review_at = self.seen + self.seen.clamp(16, REVIEW_EVERY);
        if self.placement != Placement::Renewal {
            return;
        }
        let recent = self.remembered();
        let sum: u128 = recent.iter().map(|&size| u128::from(size)).sum();
        let mean = (sum / recent.len() as u128) as u64;
        let small_below = mean / 16;
        let small = recent.iter().filter(|&&size| size < small_below).count();
        let worth_it = small * 10 > recent.len();
        self.mean = mean;
        self.small_below = if worth_it { small_below } else { 0 };
        self.slot = self.decide_slot();
    }

    /// The slot length that the recent large sizes call for, or 0.
    fn decide_slot(&self) -> u64 {
        let large = || self.remembered().iter().copied().filter(|&size| size >= self.small_below);
        let (Some(least), Some(most)) = (large().min(), large().max()) else { return 0 };
        if most > least + least / 4 || self.capacity / most > SLOTS_MAX {
            return 0;
        }
        // A few exact sizes find exact holes; slots would only keep them apart.
        let mut distinct = [0; EXACT_SIZES];
        let mut found = 0;
        for size in large() {
            if !distinct[..found].contains(&size) {
                if found == EXACT_SIZES {
                    // The same slots as before, unless sizes have outgrown them or shrunk a good deal.
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
        if self.seen >= self.stale_at {
            self.rebuild();
        }
    }

    /// The hole to take and the end to cut from. `flanks` tells what would appear if its left or right neighbour
    /// died.
    pub(super) fn choose(
        &self,
        candidates: &Candidates,
        size: u64,
        flanks: impl Fn(u32) -> (u64, u64),
    ) -> (u32, End) {
        if let [(id, room)] = candidates.holes[..candidates.len] {
            let ((left, right), rest) = (flanks(id), room - size);
            let low = self.value(left) + self.value(right.saturating_add(rest));
            let high = self.value(left.saturating_add(rest)) + self.value(right);
            return (id, if low >= high { End::Low } else { End::High });
        }
        let mut best = (f32::NEG_INFINITY, (candidates.holes[0].0, End::Low));
        for &(id, room) in &candidates.holes[..candidates.len] {
            let (left, right) = flanks(id);
            let rest = room - size;
            let low = self.value(left) + self.value(right.saturating_add(rest));
            let high = self.value(left.saturating_add(rest)) + self.value(right);
            let before = self.value(left.saturating_add(room)) + self.value(right.saturating_add(room));
            let (end, gain) = if low >= high { (End::Low, low - before) } else { (End::High, high - before) };
            let own = self.value(room);
            let score = self.value(rest) - own + NEIGHBOURS * (own + gain);
            if score > best.0 {
                best = (score, (id, end));
            }
        }
        best.1
    }

    /// U(m), in grid steps: the value at the nearest point of the table below.
    #[inline]
    fn value(&self, size: u64) -> f32 {
        let point = ((u128::from(size) * u128::from(self.scale)) >> 64) as usize;
        match self.value.get(point) {
            Some(&value) => value,
            None => self.value_beyond(point),
        }
    }

    /// U beyond the grid, where it goes on as it did over the last largest size.
    #[cold]
    fn value_beyond(&self, point: usize) -> f32 {
        let last = self.value[POINTS - 1];
        last + (last - self.value[POINTS / 2]) / (POINTS / 2) as f32 * (point - (POINTS - 1)) as f32
    }

    /// Solves the renewal equation for the recent requests.
    #[cold]
    fn rebuild(&mut self) {
        self.stale_at = match self.seen {
            0..16 => 16,
            16..64 => 64,
            64..256 => 256,
            _ => RECENT as u64,
        };
        let small_below = self.small_below;
        let large = || self.remembered().iter().copied().filter(|&size| size >= small_below);
        // The largest size stands on the last point below `GRID`, so that where there is one size only, the step of U is
        // where that size is. It is no less than the table is long, so that `scale` fits.
        let largest = large().max().unwrap_or(1).max(GRID as u64 + 1);
        let step = largest as f32 / GRID as f32;
        // Requests by grid cell, cell j being sizes in (j, j + 1] steps: how many, and their sum in steps.
        let mut count = [0.0f32; GRID];
        let mut sum = [0.0f32; GRID];
        let mut total = 0.0f32;
        for size in large() {
            let x = size as f32 / step;
            let cell = (x.ceil() as usize).clamp(1, GRID) - 1;
            count[cell] += 1.0;
            sum[cell] += x;
            total += 1.0;
        }
        // With s between two points, U(m − s) is a mixture of U(m − cell) and U(m − cell − 1): kernel[k] is the weight of
        // U(m − k) in all. U(m) itself stands on both sides of the equation if sizes below one step occur.
        let mut kernel = [0.0f32; GRID + 1];
        let mut value = [0.0f32; POINTS + GRID];
        let (mut fits, mut absorbed) = (0.0, 0.0);
        for cell in 0..GRID {
            let (p, size) = (count[cell] / total, sum[cell] / total);
            let beyond = size - p * cell as f32;
            kernel[cell] += p - beyond;
            kernel[cell + 1] += beyond;
        }
        let itself = kernel[0];
        // With a few sizes, most of the kernel is zero.
        let weighty: Vec<usize> = (1..=GRID).filter(|&k| kernel[k] != 0.0).collect();
        let sparse = weighty.len() < GRID / 8;
        if self.seen >= RECENT as u64 {
            // The same effort a request either way.
            self.stale_at = self.seen
                + REBUILD_EVERY * (weighty.len() as u64).clamp(LEAST_EFFORT, GRID as u64) / GRID as u64;
        }
        for m in 1..POINTS {
            if m <= GRID {
                fits += count[m - 1] / total;
                absorbed += sum[m - 1] / total;
            }
            // So far value[m] has gathered the kernel's terms.
            let solved = (absorbed + value[m]) / (1.0 - GAMMA * (1.0 - fits) - itself).max(1e-6);
            value[m] = solved;
            let later = &mut value[m + 1..];
            if sparse {
                for &k in &weighty {
                    later[k - 1] += solved * kernel[k];
                }
            } else {
                for (later, weight) in later.iter_mut().zip(&kernel[1..]) {
                    *later += solved * weight;
                }
            }
        }
        // A hole's size is looked up on the point below it; the step of U that a size makes must not be missed.
        for (point, entry) in self.value.iter_mut().enumerate() {
            *entry = value[(point + 1).min(POINTS - 1)];
        }
        self.several_below = largest / PARTS;
        self.scale = ((GRID as u128) << 64).div_ceil(u128::from(largest)) as u64;
    }
}

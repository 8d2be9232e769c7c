//! *Shadow LRU*: the blocks that LRU would hold now, and which of the two policies finds more.
//!
//! LRU with room for *N* blocks holds the *N* blocks that were used last: those whose last use is
//! not before the *horizon*. So no list is needed. Each shard counts its known blocks, held or not,
//! by the time of the last use, in [`WINDOW`] intervals. The interval of the horizon is the first
//! one after which at most as many blocks are counted as the shard holds. Within that interval the
//! last uses are assumed to be spread evenly.
//!
//! A use that the cache serves and LRU would miss adds one to the *lead*; a use that LRU would
//! serve and the cache misses takes one away. When LRU leads by more than 1 / [`TOLERANCE`] of the
//! blocks held, the cache evicts as LRU does for a while: a pause. Each pause is twice as long as
//! the one before, up to [`MAX_PAUSE`] updates of the model. A lead as large as the cache makes
//! the next pause shorter again.
//!
//! The lead never exceeds the number of blocks held. A policy that has been good for long is
//! therefore paused as soon as it costs as many hits as the cache has blocks.

use std::mem;

use super::clock::{Time, step};
use crate::sync::{AtomicU64, Ordering};

/// Intervals of a window, of at most 1 / [`RESOLUTION`] of the blocks held each.
const WINDOW: usize = 256;
const RESOLUTION: u64 = 32;

/// LRU may lead by one part in this of the blocks held.
const TOLERANCE: i64 = 50;
/// The shortest pause, in updates of the model.
const MIN_PAUSE: u64 = 8;
/// The longest one.
const MAX_PAUSE: u64 = 1024;

/// The state that the shards of a cache share. Every figure is relaxed: it guards no memory.
#[derive(Debug)]
pub(super) struct Comparison {
    /// Blocks that the policies of all shards know.
    held: AtomicU64,
    /// Uses that the cache served, less those that LRU would have served; an `i64`.
    lead: AtomicU64,
    /// Updates until the policy is tried again; 0: it is in use.
    pause: AtomicU64,
    next_pause: AtomicU64,
}

impl Default for Comparison {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Comparison {
            held: zero(),
            lead: zero(),
            pause: zero(),
            next_pause: AtomicU64::new(MIN_PAUSE),
        }
    }
}

impl Comparison {
    /// Returns the number of blocks held by all shards.
    #[inline]
    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Counts a block that has come to a shard (`1`), or left it (`-1`). `uncounted` has the
    /// changes that the shard has not made yet: an insertion that evicts nearly never writes the
    /// line that all shards share.
    #[inline]
    pub(super) fn change_held(&self, uncounted: &mut i64, more: i64) {
        *uncounted += more;
        // With few blocks each change counts.
        if uncounted.unsigned_abs() >= step(self.held()) {
            // Two's complement: adds a negative number, too.
            self.held.fetch_add(mem::take(uncounted) as u64, Ordering::Relaxed);
        }
    }

    /// Returns the uses that the cache served, less those that LRU would have served.
    pub(super) fn lead(&self) -> i64 {
        self.lead.load(Ordering::Relaxed) as i64
    }

    /// Notes that only the cache served a use (`1`), or only LRU would have (`-1`).
    pub(super) fn note(&self, more: i64) {
        let max = self.held() as i64 + 1;
        let sum = |lead: u64| Some((lead as i64 + more).min(max) as u64);
        // Never fails: `sum` always answers.
        let _ = self.lead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// Returns whether the policy may evict other blocks than LRU.
    #[inline]
    pub(super) fn is_trusted(&self) -> bool {
        self.lead() * TOLERANCE >= -(self.held() as i64)
    }

    /// Advances a pause. Called once an update of the model.
    pub(super) fn update(&self) {
        let (pause, next) =
            (self.pause.load(Ordering::Relaxed), self.next_pause.load(Ordering::Relaxed));
        if self.is_trusted() {
            if self.lead() >= self.held() as i64 {
                self.next_pause.store((next / 2).max(MIN_PAUSE), Ordering::Relaxed);
            }
        } else if pause == 0 {
            self.pause.store(next, Ordering::Relaxed);
            self.next_pause.store((2 * next).min(MAX_PAUSE), Ordering::Relaxed);
        } else {
            self.pause.store(pause - 1, Ordering::Relaxed);
            if pause == 1 {
                self.lead.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// The blocks of one shard, held or not, by their last uses. Takes 1 KiB.
#[derive(Debug)]
pub(super) struct ShadowLru {
    /// Blocks last used in an interval, by its number modulo [`WINDOW`].
    counts: [u32; WINDOW],
    /// Numbers of the interval of the horizon, and of the latest one.
    first: u64,
    last: u64,
    /// Blocks in the intervals from the first to the last.
    blocks: u64,
    /// The logarithm of the length of an interval.
    length_log2: u32,
}

impl Default for ShadowLru {
    fn default() -> Self {
        ShadowLru { counts: [0; WINDOW], first: 0, last: 0, blocks: 0, length_log2: 0 }
    }
}

impl ShadowLru {
    fn count(&mut self, interval: u64) -> &mut u32 {
        &mut self.counts[interval as usize % WINDOW]
    }

    /// Returns whether LRU holds a known block that was last used at this time, in a shard with
    /// room for `room` blocks.
    #[inline]
    pub(super) fn holds(&self, used: Time, room: usize) -> bool {
        let interval = used >> self.length_log2;
        if interval != self.first {
            return interval > self.first;
        }
        // LRU has evicted the blocks of the interval that were used first.
        let evicted = self.blocks.saturating_sub(room as u64);
        let count = u64::from(self.counts[interval as usize % WINDOW]);
        (used - (interval << self.length_log2)) * count >= evicted << self.length_log2
    }

    /// Counts a block that was used at this time, in a shard with room for `room` blocks.
    #[inline]
    pub(super) fn add(&mut self, used: Time, room: usize) {
        let interval = used >> self.length_log2;
        if interval > self.last {
            self.last = interval;
            while self.last - self.first >= WINDOW as u64 {
                self.expire();
            }
        }
        if interval >= self.first {
            *self.count(interval) += 1;
            self.blocks += 1;
        }
        while self.first < self.last
            && self.blocks - u64::from(*self.count(self.first)) >= room as u64
        {
            self.expire();
        }
    }

    /// Forgets the blocks of the first interval.
    fn expire(&mut self) {
        self.blocks -= u64::from(mem::take(self.count(self.first)));
        // Without blocks, any intervals between are empty, too.
        self.first = if self.blocks == 0 { self.last } else { self.first + 1 };
    }

    /// Removes a block that was last used at this time.
    #[inline]
    pub(super) fn remove(&mut self, used: Time) {
        let interval = used >> self.length_log2;
        // A longer interval may have the times of blocks that LRU had evicted before.
        if (self.first..=self.last).contains(&interval) && *self.count(interval) > 0 {
            *self.count(interval) -= 1;
            self.blocks -= 1;
        }
    }

    /// Makes the intervals as long as a cache of `held` blocks needs, if they are too short.
    #[inline]
    pub(super) fn fit(&mut self, held: u64) {
        if held / RESOLUTION >= 2 << self.length_log2 {
            self.lengthen();
        }
    }

    /// Joins intervals by twos.
    #[cold]
    #[inline(never)]
    fn lengthen(&mut self) {
        let before = mem::replace(&mut self.counts, [0; WINDOW]);
        let (first, last) = (self.first, self.last);
        (self.first, self.last) = (first / 2, last / 2);
        for interval in first..=last {
            *self.count(interval / 2) += before[interval as usize % WINDOW];
        }
        self.length_log2 += 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Against a list in the order of use, for uses of random blocks, and while the room grows: the
    /// window is wrong about few uses, and about as many on both sides.
    #[test]
    fn it_holds_the_blocks_that_were_used_last() {
        let (mut lru, mut list) = (ShadowLru::default(), Vec::<(u64, Time)>::new());
        let (mut random, mut wrong, mut bias) = (1u64, 0, 0i64);
        for now in 1..30_000 {
            let room = (now as usize / 10).clamp(20, 1000);
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            // Small numbers are more frequent.
            let block = (random >> 33) % 3000 * ((random >> 50) % 3000) / 3000;
            lru.fit(room as u64);
            let known =
                list.iter().position(|&(of, _)| of == block).map(|at| (at, list.remove(at)));
            if let Some((at, (_, used))) = known {
                // Blocks that were used after it.
                let held = list.len() - at < room;
                let answer = lru.holds(used, room);
                wrong += usize::from(answer != held);
                bias += i64::from(answer) - i64::from(held);
                lru.remove(used);
            }
            list.push((block, now));
            lru.add(now, room);
        }
        assert!(wrong < 300 && bias.abs() < 100, "{wrong} of 30,000 are wrong, bias {bias}");
    }

    #[test]
    fn with_few_blocks_it_is_exact() {
        let mut lru = ShadowLru::default();
        for now in 1..=3 {
            lru.add(now, 3);
        }
        lru.remove(1);
        lru.add(4, 3);
        lru.add(5, 3);
        // The block used at 2 was used before all others.
        assert!(!lru.holds(2, 3) && lru.holds(3, 3) && lru.holds(4, 3) && lru.holds(5, 3));
        // A pause of any length, and blocks that came before the horizon.
        lru.add(1 << 40, 3);
        lru.add(7, 3);
        lru.remove(7);
        assert!(lru.holds(1 << 40, 3) && !lru.holds(5, 3) && lru.blocks == 1);
    }

    #[test]
    fn a_policy_that_finds_less_is_paused_longer_each_time() {
        let shared = Comparison::default();
        let mut own = 0;
        (0..100).for_each(|_| shared.change_held(&mut own, 1));
        let mut pauses = Vec::new();
        for _ in 0..9 {
            (0..3).for_each(|_| shared.note(-1));
            assert!(!shared.is_trusted());
            let mut updates = 0;
            while !shared.is_trusted() {
                shared.update();
                updates += 1;
            }
            pauses.push(updates - 1);
        }
        assert_eq!(pauses, [8, 16, 32, 64, 128, 256, 512, 1024, 1024]);
        (0..1000).for_each(|_| shared.note(1));
        assert_eq!(shared.lead(), 101);
        shared.update();
        assert_eq!(shared.next_pause.load(Ordering::Relaxed), 512);
    }

    #[test]
    fn within_the_interval_of_the_horizon_the_last_uses_count_as_spread_evenly() {
        // Intervals of 8. LRU has evicted 2 of the 4 blocks that were used from 40 to 47.
        let mut lru =
            ShadowLru { first: 5, last: 7, blocks: 10, length_log2: 3, ..Default::default() };
        lru.counts[5..8].copy_from_slice(&[4, 3, 3]);
        for used in 0..64 {
            assert_eq!(lru.holds(used, 8), used >= 44, "{used}");
            assert_eq!(lru.holds(used, 10), used >= 40, "{used}: all of them");
            assert_eq!(lru.holds(used, 6), used >= 48, "{used}: none of them");
        }
        // The removal of a block of an interval that has none changes nothing.
        lru.remove(8 * 300);
        lru.counts[6] = 0;
        lru.blocks = 7;
        lru.remove(50);
        assert_eq!((lru.blocks, lru.counts[6]), (7, 0));
        lru.remove(47);
        assert_eq!((lru.blocks, lru.counts[5]), (6, 3));
    }

    #[test]
    fn a_shard_without_room_holds_nothing() {
        let mut lru = ShadowLru::default();
        lru.add(5, 0);
        assert!(!lru.holds(5, 0) && lru.holds(6, 0));
    }

    #[test]
    fn intervals_are_as_long_as_a_part_of_what_is_held_and_joining_them_loses_no_block() {
        let mut lru = ShadowLru::default();
        (100..300).for_each(|now| lru.add(now, 200));
        for (held, length) in [(0, 0), (63, 0), (64, 1), (127, 1), (300, 3), (100, 3), (8192, 8)] {
            // A call makes them twice as long at most.
            (0..8).for_each(|_| lru.fit(held));
            assert_eq!(lru.length_log2, length, "{held} held");
            assert_eq!((lru.first, lru.last, lru.blocks), (100 >> length, 299 >> length, 200));
            let mut counts = [0u32; WINDOW];
            (100..300).for_each(|now| counts[(now >> length) % WINDOW] += 1);
            assert_eq!(lru.counts, counts);
        }
    }
}

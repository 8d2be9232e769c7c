//! *Clock*: the age of blocks, in blocks that came since.
//!
//! All shards of a cache share one clock, which is the count of commits: so the age of a block in
//! one shard can be compared with that of a block in another. A shard advances the clock by several
//! commits at once if the cache has many blocks; see [`step`]. Each shard publishes when its next
//! victims were last used. A thread that needs space reads the figures of several shards without
//! their locks, and takes the lock of the shard with the oldest victim. The shard learns of uses
//! late, so a published figure may be too old. The thread verifies it under the lock, and looks
//! again if it has changed.

use std::sync::Arc;

use crate::sync::{AtomicU64, Ordering};

/// A time: the number of blocks committed before, in whole [steps](step).
pub(crate) type Time = u64;

/// The count of commits. Clones share one count.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgeClock(Arc<Commits>);

/// On cache lines of its own: every change of a shard reads it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Commits(AtomicU64);

/// The largest [`step`].
const MAX_STEP: u64 = 64;

/// Returns how many commits a shard counts before it advances the clock, in a cache of `held`
/// blocks. With few blocks each commit counts at once. With many, threads would pass the line of
/// the clock from processor to processor for a precision that no age needs.
#[inline]
pub(crate) fn step(held: u64) -> u64 {
    (held >> 11).clamp(1, MAX_STEP)
}

impl AgeClock {
    /// Counts blocks that were committed.
    pub(crate) fn advance(&self, blocks: u64) {
        // Relaxed: the time guards nothing. Blocks are found under the locks of their shards.
        self.0.0.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Returns the number of blocks committed so far, without those that shards have not counted
    /// yet.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        // Relaxed: see `advance`.
        self.0.0.load(Ordering::Relaxed)
    }
}

/// Returns the time at which a block at `depth` of its prefix counts as used when it is inserted.
/// Blocks of a prefix that are committed from the first to the last therefore have one time. Those
/// that are committed from the last to the first keep their order.
#[inline]
pub(crate) fn inserted_at(now: Time, depth: u32) -> Time {
    now.saturating_sub(Time::from(depth))
}

/// Returns the sort key of blocks in a shard: by last use, and of blocks used at one time the
/// deeper ones first.
#[inline]
pub(crate) fn order(used: Time, depth: u32) -> (Time, u32) {
    (used, u32::MAX - depth)
}

/// A place in the order of eviction of a whole cache: the time of the last use, and the number of
/// blocks of the shard with the same time that were evicted before. Blocks that one request used at
/// once have one time, and each shard knows only the order of its own blocks. The count makes the
/// shards evict such blocks one after the other, the last of a prefix first.
pub(crate) type Rank = u64;

/// Bits of a rank that hold the count.
const COUNT_BITS: u32 = 12;

/// The rank that a shard publishes for an order without blocks.
pub(crate) const NONE: Rank = Rank::MAX;

/// Returns the time of a rank.
#[inline]
pub(crate) fn time_of(rank: Rank) -> Time {
    rank >> COUNT_BITS
}

/// The number of evicted blocks of one order that had the same time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EvictedCount {
    used: Time,
    count: u64,
}

impl EvictedCount {
    /// Counts the eviction of a block that was last used at `used`.
    #[inline]
    pub(crate) fn more(&mut self, used: Time) {
        self.count = if used == self.used { self.count + 1 } else { 1 };
        self.used = used;
    }

    /// Returns the rank of the next block, if it was last used at `used`.
    #[inline]
    pub(crate) fn rank(&self, used: Time) -> Rank {
        let count = if used == self.used { self.count.min((1 << COUNT_BITS) - 1) } else { 0 };
        used << COUNT_BITS | count
    }
}

/// The maximum number of orders that a policy keeps; see [`super::scan_resistant`].
pub(crate) const ORDERS: usize = 5;

/// The rank of the first block of each order of a shard.
#[derive(Debug)]
pub(crate) struct Oldest([AtomicU64; ORDERS]);

impl Default for Oldest {
    fn default() -> Self {
        Oldest(std::array::from_fn(|_| AtomicU64::new(NONE)))
    }
}

impl Oldest {
    /// Publishes the ranks of the first orders. The caller has the lock of the shard.
    #[inline]
    pub(crate) fn publish(&self, ranks: &[Rank]) {
        for (shown, &rank) in self.0.iter().zip(ranks) {
            // Relaxed, both: the rank guards nothing, and is verified under the lock. An unchanged
            // rank is not written, to keep its cache line shared.
            if shown.load(Ordering::Relaxed) != rank {
                shown.store(rank, Ordering::Relaxed);
            }
        }
    }

    /// Returns the ranks that were published last.
    #[inline]
    pub(crate) fn ranks(&self) -> [Rank; ORDERS] {
        // Relaxed: see `publish`.
        std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn of_blocks_with_one_time_the_next_ranks_behind_those_evicted_in_another_shard() {
        let (mut one, mut other) = (EvictedCount::default(), EvictedCount::default());
        assert_eq!(one.rank(7), other.rank(7));
        one.more(7);
        assert!(other.rank(7) < one.rank(7) && one.rank(7) < other.rank(8));
        other.more(7);
        other.more(7);
        assert!(one.rank(7) < other.rank(7));
        (0..10_000).for_each(|_| one.more(7));
        assert!(other.rank(7) < one.rank(7) && one.rank(7) < one.rank(8));
        assert_eq!((time_of(one.rank(7)), time_of(one.rank(9))), (7, 9));
    }

    #[test]
    fn a_shard_counts_more_commits_at_once_the_more_blocks_are_held() {
        let steps = [0, 100, 4095, 4096, 20_480, 131_072, u64::MAX].map(step);
        assert_eq!(steps, [1, 1, 1, 2, 10, MAX_STEP, MAX_STEP]);
    }

    #[test]
    fn the_ranks_of_the_first_orders_are_those_published_last() {
        let oldest = Oldest::default();
        assert_eq!(oldest.ranks(), [NONE; ORDERS]);
        oldest.publish(&[1, 2, 3, 4, 5]);
        assert_eq!(oldest.ranks(), [1, 2, 3, 4, 5]);
        oldest.publish(&[7]);
        oldest.publish(&[7, NONE]);
        assert_eq!(oldest.ranks(), [7, NONE, 3, 4, 5]);
    }
}

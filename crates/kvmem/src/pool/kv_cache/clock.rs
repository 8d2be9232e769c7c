//! *Clock*: the age of blocks, in blocks that came since.
//!
//! All shards of a cache share one clock, which is the count of commits: so the age of a block in
//! one shard can be compared with that of a block in another. Each shard publishes when its next
//! victims were last used. A thread that needs space reads the figures of several shards without
//! their locks, and takes the lock of the shard with the oldest victim. The shard learns of uses
//! late, so a published figure may be too old. The thread verifies it under the lock, and looks
//! again if it has changed.

// What is public is for the model in `tests/loom`.
#![allow(unreachable_pub)]

use std::sync::Arc;

use crate::sync::{AtomicU64, Ordering};

/// Blocks that had been committed.
pub type Time = u64;

/// The count of commits. Clones are one clock.
#[derive(Clone, Debug, Default)]
pub struct AgeClock(Arc<AtomicU64>);

impl AgeClock {
    /// A block has become one that can be evicted. Called under the lock of its shard.
    pub fn tick(&self) {
        // Release pairs with the Acquire in `now`: a thread that sees the number finds the block.
        self.0.fetch_add(1, Ordering::Release);
    }

    /// How many blocks have been committed so far.
    pub fn now(&self) -> Time {
        // Acquire pairs with the Release in `tick`.
        self.0.load(Ordering::Acquire)
    }
}

/// The time at which a block at a depth of its prefix counts as used when it comes. The blocks of a
/// prefix that are committed from the first to the last so have one time, and those that are
/// committed from the last to the first keep their order.
#[inline]
pub fn inserted_at(now: Time, depth: u32) -> Time {
    now.saturating_sub(Time::from(depth))
}

/// The order of blocks in a shard: by last use, and of those used at once the deeper ones first.
#[inline]
pub fn order(used: Time, depth: u32) -> (Time, u32) {
    (used, u32::MAX - depth)
}

/// A place in the order of eviction of a whole cache: the time of the last use, and how many blocks
/// of the shard with the same time have gone before. Blocks that one request used at once have one
/// time, and each shard knows only the order of its own; by the count the shards give such blocks
/// in turn, the last of a prefix first.
pub type Rank = u64;

/// Bits of a rank that count.
const COUNT_BITS: u32 = 12;

/// What a shard publishes where it has no block.
pub const NONE: Rank = Rank::MAX;

/// The time of a rank.
#[inline]
pub fn time_of(rank: Rank) -> Time {
    rank >> COUNT_BITS
}

/// The blocks of one order that went with the same time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gone {
    used: Time,
    count: u64,
}

impl Gone {
    /// One more went that was used then.
    #[inline]
    pub fn more(&mut self, used: Time) {
        self.count = if used == self.used { self.count + 1 } else { 1 };
        self.used = used;
    }

    /// The rank of the next one, if that was used then.
    #[inline]
    pub fn rank(&self, used: Time) -> Rank {
        let count = if used == self.used { self.count.min((1 << COUNT_BITS) - 1) } else { 0 };
        used << COUNT_BITS | count
    }
}

/// Most orders of blocks that a policy keeps; see [`super::scan_resistant`].
pub const ORDERS: usize = 5;

/// The rank of the first block of each order of a shard.
#[derive(Debug)]
pub struct Oldest([AtomicU64; ORDERS]);

impl Default for Oldest {
    fn default() -> Self {
        Oldest(std::array::from_fn(|_| AtomicU64::new(NONE)))
    }
}

impl Oldest {
    /// Publishes. The caller has the lock of the shard.
    #[inline]
    pub fn publish(&self, ranks: [Rank; ORDERS]) {
        for (shown, rank) in self.0.iter().zip(ranks) {
            // Relaxed, both: it guards nothing, and is verified under the lock. A line that stays
            // as it is, is not written.
            if shown.load(Ordering::Relaxed) != rank {
                shown.store(rank, Ordering::Relaxed);
            }
        }
    }

    /// What was published last.
    #[inline]
    pub fn ranks(&self) -> [Rank; ORDERS] {
        // Relaxed: see `publish`.
        std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_blocks_with_one_time_the_next_ranks_behind_those_that_went_elsewhere() {
        let (mut one, mut other) = (Gone::default(), Gone::default());
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
}

//! *Frontier*: how far the eviction of the whole cache has come.
//!
//! A thread that inserts has the lock of its key's shard, and with a good hash function each shard
//! gets its share of the insertions. The shard's own next victim is therefore nearly always about
//! as old as that of the other shards. The frontier says whether it is: the thread that compared
//! several shards last left the age and the worth of the victim that it chose. A shard whose own
//! victim is within [`SLACK`] of it evicts by itself, under the lock that the thread has, and reads
//! no line of another shard. Otherwise the thread compares shards, and moves the frontier.
//!
//! The frontier need not be exact: the age moves only when a thread compares, and a frontier that
//! is behind makes threads compare. All figures are relaxed, and guard no memory.

use super::clock::{NONE, Rank, Time, time_of};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A shard evicts by itself what is younger than the frontier by at most one part in this of the
/// blocks held. Caches with fewer blocks always compare.
const SLACK: u64 = 256;

/// The least slack with which shards compare worths by the frontier, and new blocks are no next
/// victims. With fewer blocks the worths of victims differ too much: with 3,000 blocks and eight
/// shards, the frontier cost a recorded trace 0.4 points of hits.
pub(in crate::cache) const LARGE_SLACK: Time = 32;

/// Returns the number of commits by which a victim may be younger than the frontier, in a cache of
/// `held` blocks.
#[inline]
pub(in crate::cache) fn slack(held: u64) -> Time {
    held / SLACK
}

/// The largest number of evictions that [`run`] returns.
const MAX_RUN: u64 = 7;

/// Returns the number of further blocks that a shard may evict without a look at other shards,
/// after one that is old enough. Its victims become younger by at most half of the slack meanwhile.
/// `shards` is a power of two.
#[inline]
pub(in crate::cache) fn run(slack: Time, shards: usize) -> u32 {
    if slack < LARGE_SLACK { 0 } else { (slack >> 1 >> shards.ilog2()).min(MAX_RUN) as u32 }
}

/// The figures of the last compared victim. On cache lines of their own: every eviction reads them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(in crate::cache) struct Frontier {
    /// The last use of LRU's candidate.
    time: AtomicU64,
    /// The worth of LRU's candidate, as the bits of an `f32`.
    oldest_worth: AtomicU32,
    /// The worth of the victim, as the bits of an `f32`.
    worth: AtomicU32,
}

impl Frontier {
    /// Returns whether a block may be evicted without a comparison, by its age.
    #[inline]
    pub(in crate::cache) fn has_reached(&self, rank: Rank, slack: Time) -> bool {
        let time = self.time.load(Ordering::Relaxed);
        rank != NONE && slack > 0 && time_of(rank) <= time.saturating_add(slack)
    }

    /// Returns the worth of LRU's candidate among all shards, and that of the last victim.
    #[inline]
    pub(in crate::cache) fn worths(&self) -> (f32, f32) {
        let worth = |of: &AtomicU32| f32::from_bits(of.load(Ordering::Relaxed));
        (worth(&self.oldest_worth), worth(&self.worth))
    }

    /// Moves the frontier to the age of LRU's candidate. Small steps are not written, to leave the
    /// cache line with all processors.
    #[inline]
    pub(in crate::cache) fn move_to(&self, oldest: Rank, slack: Time) {
        let (time, before) = (time_of(oldest), self.time.load(Ordering::Relaxed));
        if time.abs_diff(before) > slack / 4 {
            self.time.store(time, Ordering::Relaxed);
        }
    }

    /// Sets the worths of LRU's candidate and of the victim.
    #[inline]
    pub(in crate::cache) fn set_worths(&self, oldest: f32, victim: f32) {
        for (shown, worth) in [(&self.oldest_worth, oldest), (&self.worth, victim)] {
            if shown.load(Ordering::Relaxed) != worth.to_bits() {
                shown.store(worth.to_bits(), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::clock::EvictedCount;
    use super::*;

    #[test]
    fn a_block_is_reached_up_to_the_slack_and_small_caches_always_compare() {
        let rank = |time| EvictedCount::default().rank(time);
        let frontier = Frontier::default();
        let slack = slack(100 * SLACK);
        assert_eq!(slack, 100);
        frontier.move_to(rank(1000), slack);
        assert!(frontier.has_reached(rank(1100), slack) && frontier.has_reached(rank(3), slack));
        assert!(!frontier.has_reached(rank(1101), slack) && !frontier.has_reached(NONE, slack));
        frontier.move_to(rank(1025), slack);
        assert!(!frontier.has_reached(rank(1101), slack), "a small step is not written");
        frontier.move_to(rank(1026), slack);
        assert!(frontier.has_reached(rank(1126), slack));
        frontier.move_to(rank(10), slack);
        assert!(!frontier.has_reached(rank(111), slack), "it moves back, too");
        assert!(!frontier.has_reached(rank(0), super::slack(SLACK - 1)));
    }

    #[test]
    fn a_run_is_short_enough_for_the_slack_and_small_caches_have_none() {
        assert_eq!((run(LARGE_SLACK - 1, 1), run(LARGE_SLACK, 4), run(LARGE_SLACK, 64)), (0, 4, 0));
        for (slack, shards) in [(32, 1), (390, 8), (390, 64), (4000, 256)] {
            let run = Time::from(run(slack, shards));
            assert!(run <= MAX_RUN && run * shards as Time <= slack / 2, "{slack} {shards}");
        }
        assert_eq!(run(100_000, 8), MAX_RUN as u32);
    }

    #[test]
    fn the_worths_are_those_that_were_set_last() {
        let frontier = Frontier::default();
        assert_eq!(frontier.worths(), (0.0, 0.0));
        for worths in [(0.5, 0.25), (0.5, 2.0), (3.0, 2.0), (0.0, 2.0)] {
            frontier.set_worths(worths.0, worths.1);
            assert_eq!(frontier.worths(), worths);
        }
    }
}

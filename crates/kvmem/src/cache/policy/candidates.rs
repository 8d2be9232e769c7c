//! *Candidates*: LRU's victim and the block that is worth least, of one shard or of several.
//!
//! Counts are estimates, and so are worths: LRU's candidate is evicted unless the other is worth
//! clearly less, less than [`CLEARLY`] of it. LRU's candidate is evicted, too, while the
//! [shadow LRU](super::shadow_lru) says that LRU finds more.

use super::clock::{NONE, ORDERS, Rank, Time, time_of};
use super::reuse::Reuse;

/// A block is evicted before an older one only if its worth is below this fraction of the other's.
pub(super) const CLEARLY: f32 = 0.8;

/// Returns whether a worth is less than another by more than two estimates may differ.
#[inline]
pub(in crate::cache) fn is_clearly_less(worth: f32, other: f32) -> bool {
    worth < CLEARLY * other
}

/// The first block of a ring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cache) struct First {
    pub(super) ring: usize,
    rank: Rank,
    pub(in crate::cache) worth: f32,
}

impl First {
    /// Returns the rank of the block.
    pub(in crate::cache) fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns whether this block is worth less. Of blocks with the same worth, the lower kind is
    /// less, and then the earlier use.
    fn is_less(&self, other: &First) -> bool {
        let order = self.worth.total_cmp(&other.worth);
        order.then(self.ring.cmp(&other.ring)).then(self.rank.cmp(&other.rank)).is_lt()
    }
}

/// The two candidates for eviction.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Candidates {
    /// LRU's candidate: the oldest block.
    pub(in crate::cache) oldest: First,
    /// The block that is worth least.
    pub(in crate::cache) least: First,
}

impl Candidates {
    /// Returns the candidates of the rings whose first blocks have these ranks; `None` if there are
    /// no blocks.
    pub(in crate::cache) fn of(reuse: &Reuse, now: Time, ranks: [Rank; ORDERS]) -> Option<Self> {
        let firsts = ranks.into_iter().enumerate().filter(|&(_, rank)| rank != NONE);
        let worth = |ring, rank| reuse.worth(ring, now.saturating_sub(time_of(rank)));
        let mut firsts = firsts.map(|(ring, rank)| First { ring, rank, worth: worth(ring, rank) });
        let first = firsts.next()?;
        Some(firsts.fold(Candidates { oldest: first, least: first }, |so_far, first| {
            so_far.and(Candidates { oldest: first, least: first })
        }))
    }

    /// Returns the candidates of both sets; of equals those of `self`.
    pub(in crate::cache) fn and(self, other: Candidates) -> Candidates {
        Candidates {
            oldest: if other.oldest.rank < self.oldest.rank { other.oldest } else { self.oldest },
            least: if other.least.is_less(&self.least) { other.least } else { self.least },
        }
    }

    /// Returns the victim: [`choice`](Self::choice), or LRU's candidate while LRU finds more.
    pub(in crate::cache) fn trusted_choice(&self, reuse: &Reuse, other: Option<f32>) -> First {
        if reuse.comparison.is_trusted() { self.choice(other) } else { self.oldest }
    }

    /// Returns the victim. `other` is the worth of LRU's candidate if that is in another shard.
    pub(in crate::cache) fn choice(&self, other: Option<f32>) -> First {
        if is_clearly_less(self.least.worth, other.unwrap_or(self.oldest.worth)) {
            self.least
        } else {
            self.oldest
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_older_block_stays_only_before_one_that_is_worth_clearly_less() {
        let first = |ring, rank, worth| First { ring, rank, worth };
        let of = |old: f32, least: f32| Candidates {
            oldest: first(3, 10, old),
            least: first(0, 90, least),
        };
        assert_eq!(of(1.0, 0.5).choice(None).ring, 0);
        assert_eq!(of(1.0, 0.85).choice(None).ring, 3);
        // LRU's candidate stands in another shard.
        assert_eq!(of(1.0, 0.85).choice(Some(2.0)).ring, 0);
        let both =
            of(1.0, 0.5).and(Candidates { oldest: first(1, 5, 3.0), least: first(2, 7, 0.6) });
        assert_eq!((both.oldest.rank, both.least.worth), (5, 0.5));
    }

    #[test]
    fn equal_worths_and_ages_leave_the_first_of_two_candidates() {
        assert!(is_clearly_less(0.79, 1.0) && !is_clearly_less(CLEARLY, 1.0));
        let first = |ring, rank, worth| First { ring, rank, worth };
        let one = |it: First| Candidates { oldest: it, least: it };
        // Worth less, of a lower kind, used earlier.
        let sorted = [first(4, 90, 0.1), first(0, 50, 0.5), first(0, 60, 0.5), first(1, 10, 0.5)];
        for (at, less) in sorted.iter().enumerate() {
            for other in &sorted[at + 1..] {
                assert!(less.is_less(other) && !other.is_less(less) && !less.is_less(less));
                assert_eq!(one(*less).and(one(*other)).least, *less);
                assert_eq!(one(*other).and(one(*less)).least, *less);
            }
        }
        let both = one(first(0, 50, 0.5)).and(one(first(2, 50, 0.5)));
        assert_eq!((both.oldest.ring, both.oldest.rank()), (0, 50));
        // The rings of a shard, of which some have no block.
        let reuse = Reuse::default();
        assert!(Candidates::of(&reuse, 100, [NONE; ORDERS]).is_none());
        let ranks = [NONE, 80 << 12, 20 << 12, NONE, 60 << 12];
        let found = Candidates::of(&reuse, 100, ranks).unwrap();
        assert_eq!((found.oldest.ring, found.least.ring, found.oldest.rank()), (2, 2, 20 << 12));
    }
}

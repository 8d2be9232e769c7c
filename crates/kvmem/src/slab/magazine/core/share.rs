//! *Share*: divides the bound of cached bytes among threads and classes.
//!
//! A thread has two magazines of each class that it uses. If the first threads took magazines of
//! full size until the bound is reached, all others would go to the source with every request. So
//! the size of magazines follows from the number of threads: two magazines of each class in each
//! thread take at most three quarters of the bound, and the depots have the rest. Classes whose
//! magazines need less than an equal part of a thread's share leave the remainder to the others.
//!
//! A magazine of one round is exchanged at every second call, and the depot's lock serves fewer
//! threads than the source, which can be [cut](crate::offset). If the share of many threads is less
//! than two rounds, they have no magazines of that class, and call the source.
//!
//! The sizes change when a thread comes or goes. A magazine that has become too large is exchanged
//! for one of the new size when it is empty: see [exchange](super::exchange). Threads that pause
//! keep theirs, so a thread that the bound allows no magazine returns all cached rounds to the
//! source if the share has halved since all magazines were last taken.

use super::super::depot::Depot;
use super::super::source::RoundSource;
use super::super::thread_cache::Caches;
use super::state::MagazineCore;
use crate::sync::Ordering;

/// Threads that the lock of a depot serves with magazines of one round.
const FEW_THREADS: u64 = 8;

impl<R: Copy + Send + 'static, S: RoundSource<R>> MagazineCore<R, S> {
    /// Sets the most bytes that all caches may hold.
    pub(crate) fn set_max_cached_bytes(&self, bytes: u64) {
        self.bound.set_max_cached_bytes(bytes);
        self.share_bound(&self.caches.lock());
    }

    /// Sets the size of each class's magazines for the current number of threads, if there is a
    /// bound. Called under the lock of the list; does not allocate.
    pub(super) fn share_bound(&self, caches: &Caches<R>) {
        let Some(bound) = self.bound.max_cached_bytes() else { return };
        let threads = caches.iter().count().max(1) as u64;
        let magazines = 2 * threads;
        let level = level(bound / 4 * 3 / magazines, || {
            self.depots.iter().map(Depot::max_magazine_bytes).filter(|bytes| *bytes > 0)
        });
        let few = threads <= FEW_THREADS;
        self.depots.iter().for_each(|depot| depot.set_max_magazine_bytes(level, few));
        // Relaxed: changes under the lock of the list.
        self.level.store(level, Ordering::Relaxed);
    }

    /// Returns whether the share of a thread has halved since all magazines were last taken.
    pub(super) fn has_halved(&self) -> bool {
        // Relaxed, both: hints.
        let trimmed = self.level_at_trim.load(Ordering::Relaxed);
        self.level.load(Ordering::Relaxed) <= trimmed / 2
    }

    /// Records that all magazines were taken. Called under the lock of the list.
    pub(super) fn record_level(&self) {
        // Relaxed, both: change under the lock of the list.
        self.level_at_trim.store(self.level.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Returns the most bytes for each of several needs so that all together get `total`: needs below
/// the level are met, and all others get an equal part of the remainder.
fn level<I: Iterator<Item = u64>>(total: u64, needs: impl Fn() -> I) -> u64 {
    let mut level = 0;
    loop {
        let (mut met, mut others) = (0u64, 0);
        for need in needs() {
            if need <= level { met = met.saturating_add(need) } else { others += 1 }
        }
        let next = total.saturating_sub(met).checked_div(others).unwrap_or(u64::MAX);
        if next <= level {
            return level;
        }
        level = next;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What all get together is the total, unless all needs are met; the level is the only
        /// difference between them.
        #[test]
        fn the_total_is_used_up(
            total in 0u64..10_000,
            needs in prop::collection::vec(1u64..2000, 0..40),
        ) {
            let level = level(total, || needs.iter().copied());
            let used: u64 = needs.iter().map(|need| level.min(*need)).sum();
            let all: u64 = needs.iter().sum();
            prop_assert!(used <= total);
            if all <= total {
                prop_assert_eq!(used, all);
            } else {
                prop_assert!(used + needs.len() as u64 > total, "{} of {}", used, total);
            }
        }
    }

    /// A source that has no rounds.
    struct Nothing;

    impl RoundSource<u32> for Nothing {
        fn refill(&self, _: usize, _: usize, _: &mut Vec<u32>) {}
        fn drain(&self, _: usize, _: &mut Vec<u32>) {}
        fn round_bytes(&self, _: usize) -> usize {
            64
        }
    }

    #[test]
    fn the_share_has_halved_if_the_bound_has_since_the_last_trim() {
        const BOUND: u64 = 8 << 10;
        let settings = super::super::super::settings::MagazineSettings::new(1);
        let settings = super::super::super::settings::MagazineSettings {
            max_cached_bytes: Some(BOUND),
            ..settings
        };
        let core = MagazineCore::new(Nothing, settings);
        core.trim();
        assert!(!core.has_halved());
        for (bytes, halved) in [(BOUND / 2 + 8, false), (BOUND / 2, true), (BOUND / 8, true)] {
            core.set_max_cached_bytes(bytes);
            assert_eq!(core.has_halved(), halved, "{bytes}");
        }
        core.trim();
        assert!(!core.has_halved());
        core.set_max_cached_bytes(2 * BOUND);
        assert!(!core.has_halved());
    }
}

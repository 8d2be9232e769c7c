//! *Bypass*: decides whether rounds bypass the caches, and whether caching pays off.
//!
//! Rounds bypass the caches during a reclaim, and after the owner of the caches has closed them.
//!
//! Caching saves time where most operations take the fast path. It *loses* time in two cases:
//!
//! - A request finds no free range and reclaims what is cached. Where several sizes share a full
//!   space, requests for one find the ranges of the others cached again and again.
//! - Magazines are so short, or requests so mixed, that a thread is on its slow path most of the
//!   time.
//!
//! A reclaim is a loss if fewer than [`WORTHWHILE_PUTS`] puts lie between it and the one before.
//! The owner of a cache counts its slow operations, and compares its puts after each
//! [`WINDOW`] of them: fewer than [`WORTHWHILE_PUTS`] are a loss, too. Where several threads share
//! the source, they would meet at its lock without caches, so each of them needs a part of these
//! puts. After [`MAX_LOSSES`] losses in a row caching does not *pay off*, and the owner of the
//! caches gives it up for some time. A window or a reclaim that is no loss begins a new row.
//!
//! Only slow paths count, and puts are counted anyway: see [reclaim](super::reclaim).

use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// With at least this many puts in a window, or between two reclaims, caching pays off. A slow
/// operation takes some 250 instructions longer than one without caches, a fast one 100 shorter,
/// and a slow put counts three times.
const WORTHWHILE_PUTS: u32 = 1024;
/// Slow operations of a thread in a window.
pub(super) const WINDOW: u32 = 256;
/// Losses in a row after which caching does not pay off. The first few may come from caches that
/// are being filled.
const MAX_LOSSES: u32 = 8;

/// Decides whether rounds bypass the caches.
pub(crate) struct Bypass {
    /// The number of threads that reclaim now, plus [`CLOSED`] if caching is disabled.
    disabled: AtomicUsize,
    /// Losses in a row.
    losses: AtomicU32,
    /// Puts counted at the latest reclaim.
    puts: AtomicU32,
    /// Puts counted when caching was last given up.
    puts_before: AtomicU32,
    reclaims: AtomicU64,
}

impl Bypass {
    pub(crate) fn new() -> Self {
        let none = || AtomicU32::new(0);
        Bypass {
            disabled: AtomicUsize::new(0),
            losses: none(),
            puts: none(),
            puts_before: none(),
            reclaims: AtomicU64::new(0),
        }
    }

    /// Returns whether rounds bypass the caches. Called under the owner's lock, so a trim happens
    /// entirely before or after it.
    pub(crate) fn is_active(&self) -> bool {
        // Relaxed: ordered by the owner's lock.
        self.disabled.load(Ordering::Relaxed) > 0
    }

    /// Makes all rounds bypass the caches until the result is dropped.
    pub(crate) fn disable(&self) -> Disabled<'_> {
        // Relaxed: ordered by the owners' locks, which the trim takes.
        self.disabled.fetch_add(1, Ordering::Relaxed);
        Disabled(&self.disabled)
    }

    /// Makes all rounds bypass the caches until [`open`](Self::open).
    pub(crate) fn close(&self) {
        // Relaxed: ordered by the owners' locks, which the trim takes.
        self.disabled.fetch_or(CLOSED, Ordering::Relaxed);
    }

    /// Caches again. No thread may use the instance meanwhile.
    pub(crate) fn open(&self) {
        // Relaxed, all: a thread that uses the instance later synchronizes with the caller first.
        self.reclaims.store(0, Ordering::Relaxed);
        self.losses.store(0, Ordering::Relaxed);
        self.disabled.fetch_and(!CLOSED, Ordering::Relaxed);
    }

    /// Returns the number of reclaims.
    pub(crate) fn reclaims(&self) -> u64 {
        // Relaxed: a statistic.
        self.reclaims.load(Ordering::Relaxed)
    }

    /// Returns false if caching has cost more than it saved for some time.
    #[inline]
    pub(crate) fn pays_off(&self) -> bool {
        // Relaxed: a hint.
        self.losses.load(Ordering::Relaxed) < MAX_LOSSES
    }

    /// Makes [`pays_off`](Self::pays_off) true, when `puts` puts are counted. Returns the puts
    /// since the last call.
    pub(crate) fn try_again(&self, puts: u32) -> u32 {
        // Relaxed, both: hints.
        self.losses.store(0, Ordering::Relaxed);
        puts.wrapping_sub(self.puts_before.swap(puts, Ordering::Relaxed))
    }

    /// Records a reclaim that happens when `puts` puts are counted.
    pub(crate) fn record_reclaim(&self, puts: u32) {
        // Relaxed, both: a hint, and a statistic.
        self.reclaims.fetch_add(1, Ordering::Relaxed);
        let since = puts.wrapping_sub(self.puts.swap(puts, Ordering::Relaxed));
        self.record(since >= WORTHWHILE_PUTS);
    }

    /// Records a window of slow operations in which a thread made `puts` puts, while `threads`
    /// threads have caches.
    pub(crate) fn record_window(&self, puts: u32, threads: usize) {
        self.record(puts as usize * threads >= WORTHWHILE_PUTS as usize);
    }

    /// Records whether caching has paid off lately.
    fn record(&self, pays: bool) {
        // Relaxed, both: hints. If threads overwrite each other's counts, some are not counted.
        let losses = if pays { 0 } else { self.losses.load(Ordering::Relaxed).saturating_add(1) };
        self.losses.store(losses, Ordering::Relaxed);
    }

    /// Removes the reclaiming threads from the count. For a forked child: they do not exist in it.
    pub(crate) fn reset_in_child(&self) {
        // Relaxed: the process has one thread.
        self.disabled.store(self.disabled.load(Ordering::Relaxed) & CLOSED, Ordering::Relaxed);
    }
}

/// The bit of [`Bypass::disabled`] for an instance whose caching is disabled; far above any number
/// of reclaiming threads.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Makes rounds bypass the caches while it lives.
pub(crate) struct Disabled<'a>(&'a AtomicUsize);

impl Drop for Disabled<'_> {
    fn drop(&mut self) {
        // Relaxed: a thread that sees the change late only misses a chance to cache.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns the number of calls of `lose` after which caching does not pay off.
    fn losses(bypass: &Bypass, mut lose: impl FnMut()) -> usize {
        let mut after = 1..100;
        after
            .find(|_| {
                lose();
                !bypass.pays_off()
            })
            .unwrap_or(0)
    }

    #[test]
    fn caching_stops_after_losses_in_a_row() {
        let bypass = Bypass::new();
        let mut puts = 0;
        let mut reclaim_after = |more: u32| {
            puts += more;
            bypass.record_reclaim(puts);
        };
        assert_eq!(losses(&bypass, || reclaim_after(WORTHWHILE_PUTS)), 0);
        assert_eq!(losses(&bypass, || reclaim_after(WORTHWHILE_PUTS - 1)), 8);
        // Another row.
        reclaim_after(WORTHWHILE_PUTS);
        assert!(bypass.pays_off());
        assert_eq!(losses(&bypass, || bypass.record_window(100, 2)), 8);
        assert_eq!(bypass.try_again(500), 500);
        assert!(bypass.pays_off());
        assert_eq!(bypass.try_again(700), 200);
        // A window that is no loss begins a new row, as does one of a thread among many.
        for (puts, threads) in [(WORTHWHILE_PUTS, 1), (WORTHWHILE_PUTS / 4, 4)] {
            assert_eq!(losses(&bypass, || bypass.record_window(puts, threads)), 0);
        }
        assert_eq!(bypass.reclaims(), 99 + 8 + 1);
    }

    #[test]
    fn a_child_has_no_reclaiming_threads_and_caches_only_if_its_parent_did() {
        let bypass = Bypass::new();
        std::mem::forget([bypass.disable(), bypass.disable()]);
        assert!(bypass.is_active());
        bypass.reset_in_child();
        assert!(!bypass.is_active());
        bypass.close();
        std::mem::forget(bypass.disable());
        bypass.reset_in_child();
        assert!(bypass.is_active());
        bypass.open();
        assert!(!bypass.is_active());
    }
}

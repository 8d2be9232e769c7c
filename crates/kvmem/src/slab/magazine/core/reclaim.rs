//! *Reclaim*: a request never fails while the ranges that it needs sit in caches.
//!
//! When the source cannot satisfy a request, the thread checks whether any cache holds rounds. If
//! one does, the thread *reclaims*: it disables caching, returns every cached round to the source,
//! and retries once while nothing can be cached. If the source fails even then, no thread could
//! have been served at that moment.
//!
//! **Checking.** If no other thread has magazines and the caller's own are empty, one load and the
//! caller's own counters decide. Otherwise the thread reads the counters of all caches, one after
//! the other. The readings are a consistent snapshot if no round moved meanwhile (see
//! [moves](super::moves)) and no round was put. A removal that the reading misses is harmless: that
//! cache is empty at the latest when the check ends. A put increments its counter before it stores
//! the round, so the check begins only after all counted puts are complete. Otherwise a counted but
//! unfinished put could land in a cache that was already read, and another thread could then empty
//! a cache that was not read yet. Magazines that move between a cache and the depot, or between the
//! two places of a cache, count as a put, too: caches are read before depots, so only a magazine
//! that enters a cache can be missed. A thread preempted in the middle of a move hides its cached
//! rounds until it runs again; meanwhile a failed request costs one reclaim.
//!
//! Where reclaims follow each other closely, caching does not pay off; see
//! [bypass](super::bypass).

use super::super::source::RoundSource;
use super::super::thread_cache::{CacheRef, Caches, OwnCache};
use super::bypass::WINDOW;
use super::state::MagazineCore;
use crate::sync::{Ordering, fence};

/// Attempts to read all caches consistently before the thread reclaims without a verdict.
const CHECKS: usize = 3;
impl<R: Copy + Send + 'static, S: RoundSource<R>> MagazineCore<R, S> {
    /// Returns the result of `look` if no round moved between caches, depot and source meanwhile.
    pub(crate) fn consistent_read<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        self.moves.consistent_read(look)
    }

    /// Returns true only if, at some moment during the call, no other thread had magazines, the
    /// caller's magazines of the first `classes()` classes were empty, and `and` returned true.
    /// Returns false if that takes longer to find out. `own` is the caller's cache.
    #[inline]
    pub(crate) fn nothing_cached_fast(
        &self,
        own: Option<CacheRef<'_, R>>,
        classes: impl FnOnce() -> usize,
        and: impl FnOnce() -> bool,
    ) -> bool {
        let seen = self.moves.consistent_read(|| {
            // Not under the owner's lock: a thread that takes the magazines away makes a move.
            let holders = self.holders.count();
            match own {
                Some(own) => {
                    holders == usize::from(own.has_magazines()) && own.is_empty(classes()) && and()
                }
                None => holders == 0 && and(),
            }
        });
        seen == Some(true)
    }

    /// Returns whether the calling thread caches nothing in the first `classes` classes.
    pub(crate) fn is_own_empty(own: Option<OwnCache<'_, R>>, classes: usize) -> bool {
        own.is_none_or(|mut own| {
            let cache = own.shared();
            let _access = own.enter();
            cache.is_empty(classes)
        })
    }

    /// Returns true only if, at some moment during the call, no cache held a round of the first
    /// `classes()` classes and `and` returned true. `and` is not called again after it returned
    /// false: it may be an allocation attempt, which has then succeeded.
    #[cold]
    #[inline(never)]
    pub(crate) fn nothing_cached(
        &self,
        classes: impl Fn() -> usize,
        mut and: impl FnMut() -> bool,
    ) -> bool {
        for _ in 0..CHECKS {
            let mut holds = true;
            let seen = self.consistent_read(|| {
                // A cache that is added meanwhile is empty or has counted its puts; the end of a
                // cache is a move.
                let (puts, empty) = {
                    let caches = self.caches.lock();
                    let Some(puts) = finished_puts(&caches) else { return (true, false) };
                    let classes = classes();
                    let empty = caches.iter().all(|cache| cache.is_empty(classes))
                        && self
                            .depots
                            .iter()
                            .take(classes)
                            .all(|depot| depot.is_empty(&self.holders));
                    (puts, empty)
                };
                // No lock of this layer is held: `and` calls the source.
                holds = !empty || and();
                // Acquire pairs with the Release fences in `OwnerAccess`.
                fence(Ordering::Acquire);
                (empty, puts == all_puts(&self.caches.lock()))
            });
            match seen {
                _ if !holds => return false,
                Some((false, _)) => return false,
                Some((true, true)) => return true,
                _ => (),
            }
        }
        false
    }

    /// Repeats an `attempt` that failed with `error`, if cached rounds may be the reason. The
    /// second attempt is made while nothing is cached in the first `classes()` classes. If there is
    /// no such moment, it is made after a [reclaim](Self::reclaim).
    #[inline]
    pub(crate) fn retry<T, E>(
        &self,
        error: E,
        classes: impl Fn() -> usize,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut last = Err(error);
        let nothing = self.nothing_cached(classes, || {
            last = attempt();
            last.is_err()
        });
        if nothing || last.is_ok() { last } else { self.reclaim(attempt) }
    }

    /// Runs `retry` at a time when everything that was cached is back in the source and nothing can
    /// be cached.
    #[cold]
    pub(crate) fn reclaim<T>(&self, retry: impl FnOnce() -> T) -> T {
        let _disabled = self.bypass.disable();
        self.bypass.record_reclaim(all_puts(&self.caches.lock()));
        self.trim();
        retry()
    }

    /// Returns all rounds to the source and caches nothing until
    /// [`enable_caching`](Self::enable_caching). `change` runs as in [`rebind`](Self::rebind).
    pub(crate) fn disable_caching(&self, change: impl FnOnce(&Self)) {
        self.bypass.close();
        self.rebind(change);
    }

    /// See [`Bypass::pays_off`](super::bypass::Bypass::pays_off).
    pub(crate) fn pays_off(&self) -> bool {
        self.bypass.pays_off()
    }

    /// See [`Bypass::try_again`](super::bypass::Bypass::try_again).
    pub(crate) fn try_again(&self) -> u32 {
        self.bypass.try_again(all_puts(&self.caches.lock()))
    }

    /// Counts a slow operation of the owner. Judges caching after a window of them.
    #[inline]
    pub(super) fn count_slow(&self, own: &mut OwnCache<'_, R>) {
        if S::TRACKED
            && let Some(puts) = own.count_slow(WINDOW)
        {
            self.bypass.record_window(puts, self.caches.lock().iter().count());
        }
    }

    pub(crate) fn reclaims(&self) -> u64 {
        self.bypass.reclaims()
    }

    /// Caches again, with a new bound. No thread may use the instance meanwhile.
    pub(crate) fn enable_caching(&self, max_cached_bytes: u64) {
        self.bound.open(max_cached_bytes);
        self.bypass.open();
    }

    /// Stops all owners and runs `look` on the rounds of all caches and the depot. `look` must not
    /// use the instance.
    pub(crate) fn with_all_stopped<T>(&self, look: impl FnOnce(&[R]) -> T) -> T {
        let mut caches = self.caches.lock();
        let mut rounds = Vec::new();
        let stopped = caches.stop();
        for access in stopped.accesses() {
            for slot in access.classes() {
                slot.loaded.copy_into(&mut rounds);
                slot.previous.copy_into(&mut rounds);
            }
        }
        self.depots.iter().for_each(|depot| depot.copy_into(&mut rounds));
        look(&rounds)
    }
}

fn finished_puts<R: Copy + 'static>(caches: &Caches<R>) -> Option<u32> {
    caches.iter().try_fold(0u32, |sum, cache| Some(sum.wrapping_add(cache.finished_puts()?)))
}

fn all_puts<R: Copy + 'static>(caches: &Caches<R>) -> u32 {
    caches.iter().fold(0, |sum, cache| sum.wrapping_add(cache.puts()))
}

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
//! a cache that was not read yet. A thread preempted in the middle of a move hides its cached
//! rounds until it runs again; meanwhile a failed request costs one reclaim.
//!
//! **Backing off.** If several sizes share a full space, a request for one size finds rounds of the
//! others and reclaims every time; caching then costs more than it saves. A reclaim that follows
//! closely on the previous one therefore makes the next puts *bypass* the caches: 64 puts at first,
//! twice as many each time, at most 8192. If 1024 or more puts lie between two reclaims, no put
//! bypasses.

use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use super::super::depot::Depot;
use super::super::source::RoundSource;
use super::super::thread_cache::{CacheRef, Caches};
use super::state::MagazineCore;

/// Attempts to read all caches consistently before the thread reclaims without a verdict.
const CHECKS: usize = 3;
/// With at least this many puts between two reclaims, caching pays off and no put bypasses.
const WORTHWHILE_PUTS: u32 = 1024;
/// Puts that bypass the caches after the first of several close reclaims, and at most.
const MIN_BYPASS_PUTS: u32 = 64;
const MAX_BYPASS_PUTS: u32 = 1 << 13;

/// Decides whether rounds bypass the caches.
pub(crate) struct Bypass {
    /// The number of threads that reclaim now, plus [`CLOSED`] if caching is disabled.
    disabled: AtomicUsize,
    /// Puts that still have to bypass.
    remaining: AtomicU32,
    /// Length of the latest bypass, in puts.
    length: AtomicU32,
    /// Puts counted at the latest reclaim.
    puts: AtomicU32,
    reclaims: AtomicU64,
}

impl Bypass {
    pub(crate) fn new() -> Self {
        let none = || AtomicU32::new(0);
        Bypass {
            disabled: AtomicUsize::new(0),
            remaining: none(),
            length: none(),
            puts: none(),
            reclaims: AtomicU64::new(0),
        }
    }

    /// Returns whether rounds bypass the caches. Called under the owner's lock, so a trim happens
    /// entirely before or after it.
    pub(crate) fn is_active(&self) -> bool {
        // Relaxed, both: `disabled` is ordered by the owner's lock; `remaining` is a hint.
        self.disabled.load(Ordering::Relaxed) > 0 || self.remaining.load(Ordering::Relaxed) > 0
    }

    /// Returns whether this put bypasses the caches, and counts it. Called under the owner's lock.
    pub(crate) fn takes_put(&self) -> bool {
        // Relaxed, all: as in `is_active`.
        let remaining = self.remaining.load(Ordering::Relaxed);
        if remaining > 0 {
            self.remaining.store(remaining - 1, Ordering::Relaxed);
        }
        remaining > 0 || self.disabled.load(Ordering::Relaxed) > 0
    }

    /// Records a reclaim that happens when `puts` puts are counted.
    fn record_reclaim(&self, puts: u32) {
        // Relaxed, all: hints.
        let since = puts.wrapping_sub(self.puts.swap(puts, Ordering::Relaxed));
        let length = match since {
            WORTHWHILE_PUTS.. => 0,
            _ => (self.length.load(Ordering::Relaxed) * 2).clamp(MIN_BYPASS_PUTS, MAX_BYPASS_PUTS),
        };
        self.length.store(length, Ordering::Relaxed);
        self.remaining.store(length, Ordering::Relaxed);
    }

    /// Removes the reclaiming threads from the count. For a forked child: they do not exist in it.
    #[cfg(not(loom))]
    pub(crate) fn reset_in_child(&self) {
        // Relaxed: the process has one thread.
        self.disabled.store(self.disabled.load(Ordering::Relaxed) & CLOSED, Ordering::Relaxed);
    }
}

/// The bit of [`Bypass::disabled`] for an instance whose caching is disabled; far above any number
/// of reclaiming threads.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Makes rounds bypass the caches while it lives.
struct Disabled<'a>(&'a AtomicUsize);

impl Drop for Disabled<'_> {
    fn drop(&mut self) {
        // Relaxed: a thread that sees the change late only misses a chance to cache.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<R: Copy + 'static> CacheRef<R> {
    /// Returns whether the first `classes` slots hold no round. Callable from any thread.
    #[inline(always)]
    fn is_empty(self, classes: usize) -> bool {
        let mut remaining = classes.min(self.cache().classes());
        while remaining > 0 {
            remaining -= 1;
            // SAFETY: the cache has this class.
            if unsafe { self.slot(remaining) }.count() > 0 {
                return false;
            }
        }
        true
    }
}

impl<R: Copy + Send + 'static, S: RoundSource<R>> MagazineCore<R, S> {
    /// Returns the result of `look` if no round moved between caches, depot and source meanwhile.
    pub(crate) fn consistent_read<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        self.moves.consistent_read(look)
    }

    /// Returns true only if, at some moment during the call, no other thread had magazines, the
    /// caller's magazines of the first `classes()` classes were empty, and `and` returned true.
    /// Returns false if that takes longer to find out. `local` is the caller's cache.
    #[inline]
    pub(crate) fn nothing_cached_fast(
        &self,
        local: Option<CacheRef<R>>,
        classes: impl FnOnce() -> usize,
        and: impl FnOnce() -> bool,
    ) -> bool {
        let seen = self.moves.consistent_read(|| {
            // Acquire pairs with the Release in `remove_holders`. Not under the owner's lock: a
            // thread that takes the magazines away makes a move.
            let holders = self.holders.load(Ordering::Acquire);
            match local {
                Some(local) => {
                    holders == usize::from(local.cache().has_magazines())
                        && local.is_empty(classes())
                        && and()
                }
                None => holders == 0 && and(),
            }
        });
        seen == Some(true)
    }

    /// Returns whether the calling thread caches nothing in the first `classes` classes.
    pub(crate) fn is_local_empty(local: Option<CacheRef<R>>, classes: usize) -> bool {
        local.is_none_or(|local| {
            let _guard = local.enter();
            local.is_empty(classes)
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
                    let empty = caches.iter().all(|local| local.is_empty(classes))
                        && self.depots.iter().take(classes).all(Depot::is_empty);
                    (puts, empty)
                };
                // No lock of this layer is held: `and` calls the source.
                holds = !empty || and();
                // Acquire pairs with the Release fences in `CacheRef::put` and `get`.
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

    /// Runs `retry` at a time when everything that was cached is back in the source and nothing can
    /// be cached.
    #[cold]
    pub(crate) fn reclaim<T>(&self, retry: impl FnOnce() -> T) -> T {
        // Relaxed: ordered by the owners' locks, which the trim takes.
        self.bypass.disabled.fetch_add(1, Ordering::Relaxed);
        let _disabled = Disabled(&self.bypass.disabled);
        self.bypass.reclaims.fetch_add(1, Ordering::Relaxed);
        self.bypass.record_reclaim(all_puts(&self.caches.lock()));
        self.trim();
        retry()
    }

    /// Returns all rounds to the source and caches nothing until
    /// [`enable_caching`](Self::enable_caching). `change` runs as in [`rebind`](Self::rebind).
    pub(crate) fn disable_caching(&self, change: impl FnOnce()) {
        // Relaxed: ordered by the owners' locks, which the trim takes.
        self.bypass.disabled.fetch_or(CLOSED, Ordering::Relaxed);
        self.rebind(|_| change());
    }

    pub(crate) fn reclaims(&self) -> u64 {
        // Relaxed: a statistic.
        self.bypass.reclaims.load(Ordering::Relaxed)
    }

    /// Caches again, with a new bound. No thread may use the instance meanwhile.
    pub(crate) fn enable_caching(&self, max_cached_bytes: u64) {
        // Relaxed, all: a thread that uses the instance later synchronizes with the caller first.
        self.set_max_cached_bytes(max_cached_bytes);
        self.bypass.reclaims.store(0, Ordering::Relaxed);
        self.bypass.remaining.store(0, Ordering::Relaxed);
        self.bypass.length.store(0, Ordering::Relaxed);
        self.bypass.disabled.fetch_and(!CLOSED, Ordering::Relaxed);
    }

    /// Stops all owners and runs `look` on the rounds of all caches and the depot. `look` must not
    /// use the instance.
    pub(crate) fn with_all_stopped<T>(&self, look: impl FnOnce(&[R]) -> T) -> T {
        let caches = self.caches.lock();
        let mut rounds = Vec::new();
        self.stop(&caches);
        for slot in
            caches.iter().filter(|local| local.cache().stopped.get()).flat_map(CacheRef::slots)
        {
            slot.loaded.copy_into(&mut rounds);
            slot.previous.copy_into(&mut rounds);
        }
        self.depots.iter().for_each(|depot| depot.copy_into(&mut rounds));
        let found = look(&rounds);
        Self::resume(&caches);
        found
    }
}

fn finished_puts<R: Copy + 'static>(caches: &Caches<R>) -> Option<u32> {
    caches.iter().try_fold(0u32, |sum, local| Some(sum.wrapping_add(local.finished_puts()?)))
}

fn all_puts<R: Copy + 'static>(caches: &Caches<R>) -> u32 {
    caches.iter().fold(0, |sum, local| sum.wrapping_add(local.puts()))
}

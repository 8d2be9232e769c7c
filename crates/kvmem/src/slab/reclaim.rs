//! *Reap*: nothing is refused for want of what lies in a cache.
//!
//! Who asks the source in vain looks whether anything is cached. If so, he *reaps*: sends all
//! rounds past the caches, trims, and asks once more while nothing can be cached. What the source
//! refuses then, nobody could have been given at that moment.
//!
//! **Looking.** If nobody but the asking thread has a magazine, and his are empty, that is one look
//! at one variable and at his own numbers. Else the numbers of all caches are read, one after the
//! other, and held to be those of one moment if no round moved meanwhile (see
//! [moves](super::moves)) and none was put: what is only taken away may be overlooked, for it was
//! empty at the end of the look at the latest. Puts are counted before they are done; so the look
//! begins when those that are counted have been done. Else one could come to its place behind the
//! look's back, and let another thread take what the look has not come to yet. Who loses
//! the processor in the middle of a move hides what is cached until he has it again; so long a
//! refusal costs the others a reap.
//!
//! **Resting.** Where several sizes share a full space, every request for one of them finds rounds
//! of the others, and reaps; then caching costs more than it saves. So a reap that comes soon after
//! the one before sends the next puts past the caches, at first a few, then more each time.

use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use super::caches::Caches;
use super::core::MagazineCore;
use super::depot::Depot;
use super::source::RoundSource;
use super::thread_cache::CacheRef;

/// Looks at all caches before they are reaped without a look.
const CHECKS: usize = 3;
/// With so many puts between them, reaps pay.
const WORTHWHILE_PUTS: u32 = 1024;
/// Puts that the first rest sends past the caches, and the longest.
const MIN_BYPASS_PUTS: u32 = 64;
const MAX_BYPASS_PUTS: u32 = 1 << 13;

/// Whether rounds go past the caches.
pub(super) struct Bypass {
    /// Those who want it so: who reap, or have closed the instance.
    disabled: AtomicUsize,
    /// Puts that still do.
    remaining: AtomicU32,
    /// Length of the latest rest.
    length: AtomicU32,
    /// Puts at the latest reap.
    puts: AtomicU32,
    reclaims: AtomicU64,
}

impl Bypass {
    pub(super) fn new() -> Self {
        let none = || AtomicU32::new(0);
        Bypass {
            disabled: AtomicUsize::new(0),
            remaining: none(),
            length: none(),
            puts: none(),
            reclaims: AtomicU64::new(0),
        }
    }

    /// Whether there is one. Under the owner's lock, so that a trim comes before or after.
    pub(super) fn is_active(&self) -> bool {
        // Relaxed, both: the first is ordered by the owner's lock, the second a hint.
        self.disabled.load(Ordering::Relaxed) > 0 || self.remaining.load(Ordering::Relaxed) > 0
    }

    /// Whether this put goes past the caches. As above.
    pub(super) fn takes_put(&self) -> bool {
        // Relaxed, all: as above.
        let remaining = self.remaining.load(Ordering::Relaxed);
        if remaining > 0 {
            self.remaining.store(remaining - 1, Ordering::Relaxed);
        }
        remaining > 0 || self.disabled.load(Ordering::Relaxed) > 0
    }

    /// A reap, at so many puts.
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

    /// Nobody reaps: for a forked child, which has one thread, the one that forked it.
    #[cfg(not(loom))]
    pub(super) fn reset_in_child(&self) {
        // Relaxed: there is one thread.
        self.disabled.store(self.disabled.load(Ordering::Relaxed) & CLOSED, Ordering::Relaxed);
    }
}

/// In [`Bypass::disabled`]: the instance is closed. Above what reapers count up to.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Rounds go past the caches as long as it lives.
struct Disabled<'a>(&'a AtomicUsize);

impl Drop for Disabled<'_> {
    fn drop(&mut self) {
        // Relaxed: who sees it late only misses a chance.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<R: Copy + 'static> CacheRef<R> {
    /// Whether the first `classes` slots have no round. From any thread.
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
    /// What `look` found, if no round went from place to place meanwhile.
    pub(crate) fn consistent_read<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        self.moves.consistent_read(look)
    }

    /// True only if nobody but the caller, whose cache is `local`, had magazines, and those of the
    /// first `classes()` classes were empty, and `and` held, at a moment in the call. False if
    /// that takes longer to know.
    #[inline]
    pub(crate) fn nothing_cached_fast(
        &self,
        local: Option<CacheRef<R>>,
        classes: impl FnOnce() -> usize,
        and: impl FnOnce() -> bool,
    ) -> bool {
        let seen = self.moves.consistent_read(|| {
            // Acquire pairs with the Release in `let_go`. Not under the owner's lock: whoever takes
            // the magazines away moves something.
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

    /// Whether a thread has nothing in the first `classes` classes.
    pub(crate) fn is_local_empty(local: Option<CacheRef<R>>, classes: usize) -> bool {
        local.is_none_or(|local| {
            let _guard = local.enter();
            local.is_empty(classes)
        })
    }

    /// True only if there was a moment in the call in which nobody had anything cached in the first
    /// `classes()` classes, and `and` held. `and` is not asked again once it did not: it may be
    /// an attempt, which has succeeded then.
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
                // Caches that come meanwhile have put nothing or are counted; the end of one is a
                // move.
                let (puts, empty) = {
                    let caches = self.caches.lock();
                    let Some(puts) = finished_puts(&caches) else { return (true, false) };
                    let classes = classes();
                    let empty = caches.iter().all(|local| local.is_empty(classes))
                        && self.depots.iter().take(classes).all(Depot::is_empty);
                    (puts, empty)
                };
                // Under no lock of this layer: the source is asked.
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

    /// Runs `retry` while everything that was cached is back in the source and nothing is cached.
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

    /// Everything back to the source; nothing will be cached until [`enable_caching`](Self::enable_caching). `change`
    /// as for [`rebind`](Self::rebind).
    pub(crate) fn disable_caching(&self, change: impl FnOnce()) {
        // Relaxed: as in `reclaim`.
        self.bypass.disabled.fetch_or(CLOSED, Ordering::Relaxed);
        self.rebind(|_| change());
    }

    pub(crate) fn reclaims(&self) -> u64 {
        // Relaxed: a count.
        self.bypass.reclaims.load(Ordering::Relaxed)
    }

    /// Begins to cache again, with another bound. Nobody uses the instance.
    pub(crate) fn enable_caching(&self, max_cached_bytes: u64) {
        // Relaxed, all: who uses the instance has heard of it after this.
        self.set_max_cached_bytes(max_cached_bytes);
        self.bypass.reclaims.store(0, Ordering::Relaxed);
        self.bypass.remaining.store(0, Ordering::Relaxed);
        self.bypass.length.store(0, Ordering::Relaxed);
        self.bypass.disabled.fetch_and(!CLOSED, Ordering::Relaxed);
    }

    /// Runs `look` on the rounds of all caches and the depot, while their owners stand still.
    /// `look` must not use the instance.
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

//! *Bypass*: decides whether rounds bypass the caches.
//!
//! If several sizes share a full space, a request for one size finds rounds of the others and
//! reclaims every time; caching then costs more than it saves. A reclaim that follows closely on
//! the previous one therefore makes the next puts *bypass* the caches: 64 puts at first, twice as
//! many each time, at most 8192. If 1024 or more puts lie between two reclaims, no put bypasses.
//! After 32 close reclaims in a row caching does not *pay off*, and the owner of the caches may
//! give it up for some time.

use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// With at least this many puts between two reclaims, caching pays off and no put bypasses.
const WORTHWHILE_PUTS: u32 = 1024;
/// Puts that bypass the caches after the first of several close reclaims, and at most.
const MIN_BYPASS_PUTS: u32 = 64;
const MAX_BYPASS_PUTS: u32 = 1 << 13;
/// The number of close reclaims in a row from which on caching does not pay off. The first few may
/// come from caches that are being filled.
const MAX_CLOSE_RECLAIMS: u32 = 32;
/// The number of further close reclaims after which caching, tried again, does not pay off.
const CLOSE_RECLAIMS_AGAIN: u32 = 16;

/// Decides whether rounds bypass the caches.
pub(crate) struct Bypass {
    /// The number of threads that reclaim now, plus [`CLOSED`] if caching is disabled.
    disabled: AtomicUsize,
    /// Puts that still have to bypass.
    remaining: AtomicU32,
    /// Length of the latest bypass, in puts.
    length: AtomicU32,
    /// Reclaims in a row that followed closely on the previous one.
    close: AtomicU32,
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
            close: none(),
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
        self.remaining.store(0, Ordering::Relaxed);
        self.length.store(0, Ordering::Relaxed);
        self.close.store(0, Ordering::Relaxed);
        self.disabled.fetch_and(!CLOSED, Ordering::Relaxed);
    }

    /// Returns the number of reclaims.
    pub(crate) fn reclaims(&self) -> u64 {
        // Relaxed: a statistic.
        self.reclaims.load(Ordering::Relaxed)
    }

    /// Returns false if many reclaims in a row followed closely on the previous one.
    pub(crate) fn pays_off(&self) -> bool {
        // Relaxed: a hint.
        self.close.load(Ordering::Relaxed) < MAX_CLOSE_RECLAIMS
    }

    /// Makes [`pays_off`](Self::pays_off) true, until some more reclaims follow closely.
    pub(crate) fn try_again(&self) {
        // Relaxed, both: hints.
        self.close.store(MAX_CLOSE_RECLAIMS - CLOSE_RECLAIMS_AGAIN, Ordering::Relaxed);
        self.length.store(0, Ordering::Relaxed);
    }

    /// Records a reclaim that happens when `puts` puts are counted.
    pub(crate) fn record_reclaim(&self, puts: u32) {
        // Relaxed, all: hints, and a statistic.
        self.reclaims.fetch_add(1, Ordering::Relaxed);
        let since = puts.wrapping_sub(self.puts.swap(puts, Ordering::Relaxed));
        let length = match since {
            WORTHWHILE_PUTS.. => 0,
            _ => (self.length.load(Ordering::Relaxed) * 2).clamp(MIN_BYPASS_PUTS, MAX_BYPASS_PUTS),
        };
        let close = self.close.load(Ordering::Relaxed).saturating_add(1);
        self.close.store(if length == 0 { 0 } else { close }, Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
        self.remaining.store(length, Ordering::Relaxed);
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

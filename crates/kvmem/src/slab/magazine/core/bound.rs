//! *Bound*: the most bytes that all caches of an instance together may hold.
//!
//! A magazine is *charged* with the bytes that it could hold: before its rounds leave the source,
//! and until they are back.

use super::moves::Moves;
use crate::sync::{AtomicU64, Ordering};

/// The value of [`CacheBound::bound`] for no bound.
const NO_BOUND: u64 = u64::MAX;
/// Attempts to read the charged bytes consistently.
const CONSISTENT_READ_TRIES: usize = 16;

/// The bound of cached bytes, and what is charged against it.
pub(crate) struct CacheBound {
    bound: AtomicU64,
    /// The bytes that all magazines in caches, and all magazines with rounds in the depot, could
    /// hold if they were full. Maintained only if there is a bound.
    charged: AtomicU64,
    uncharges: Moves,
    /// Readers detect uncharges.
    tracked: bool,
}

impl CacheBound {
    pub(crate) fn new(max_cached_bytes: Option<u64>, tracked: bool) -> Self {
        CacheBound {
            bound: AtomicU64::new(max_cached_bytes.unwrap_or(NO_BOUND)),
            charged: AtomicU64::new(0),
            uncharges: Moves::new(),
            tracked,
        }
    }

    /// Returns the most bytes that may be cached; `None` if there is no bound.
    pub(crate) fn max_cached_bytes(&self) -> Option<u64> {
        // Relaxed: see `set_max_cached_bytes`.
        Some(self.bound.load(Ordering::Relaxed)).filter(|bound| *bound != NO_BOUND)
    }

    pub(crate) fn set_max_cached_bytes(&self, bytes: u64) {
        // Relaxed: a thread that sees the new bound late may exceed it by one magazine.
        self.bound.store(bytes, Ordering::Relaxed);
    }

    /// Charges a magazine of `capacity` rounds. Returns its charge, or `None` if the bound allows
    /// no more.
    pub(crate) fn charge(&self, capacity: usize, round_bytes: u64) -> Option<u64> {
        let Some(bound) = self.max_cached_bytes() else { return Some(0) };
        let bytes = (capacity as u64).saturating_mul(round_bytes);
        // Relaxed: a counter.
        let charge = |charged: u64| charged.checked_add(bytes).filter(|sum| *sum <= bound);
        self.charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge).ok().map(|_| bytes)
    }

    pub(crate) fn uncharge(&self, charge: u64) {
        if charge > 0 {
            let _move = self.uncharges.begin(self.tracked);
            // Relaxed: a counter.
            self.charged.fetch_sub(charge, Ordering::Relaxed);
        }
    }

    /// Returns an upper bound of the bytes of all cached rounds. Only with a bound on them.
    #[inline(always)]
    pub(crate) fn charged(&self) -> u64 {
        // Relaxed: a counter.
        self.charged.load(Ordering::Relaxed)
    }

    /// Returns an upper bound of the bytes that were free in the source, as `free` reports, and in
    /// all caches together at the moment that `free` read them. Only with a bound on cached bytes.
    /// Returns `None` if other threads keep the readings from being consistent.
    #[inline]
    pub(crate) fn max_free(&self, free: impl Fn() -> u64) -> Option<u64> {
        // A magazine is charged before its rounds leave the source and uncharged after they are
        // back. So a charge between the two readings does no harm, and the uncharges are watched.
        let read = || self.uncharges.consistent_read(|| free().saturating_add(self.charged()));
        read().or_else(|| (0..CONSISTENT_READ_TRIES).find_map(|_| read()))
    }

    /// Marks all uncharges as ended. For a forked child.
    pub(crate) fn reset_in_child(&self) {
        self.uncharges.reset_in_child();
    }
}

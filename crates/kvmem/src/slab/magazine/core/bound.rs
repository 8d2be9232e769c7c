//! *Bound*: the most bytes that all caches of an instance together may hold.
//!
//! A magazine is *charged* with the bytes that it could hold: before its rounds leave the source,
//! and until they are back. Charges and uncharges are two sums that only grow. A reader that loads
//! the uncharges first and the charges last therefore never finds less than what was charged at any
//! moment in between, however many threads change the sums meanwhile.

use crate::sync::{AtomicU64, Ordering, fence};

/// The value of [`CacheBound::bound`] for no bound.
const NO_BOUND: u64 = u64::MAX;

/// The bound of cached bytes, and what is charged against it.
pub(crate) struct CacheBound {
    bound: AtomicU64,
    /// The greatest bound since caching was enabled: no more was ever charged.
    ceiling: AtomicU64,
    sums: ChargeSums,
}

/// The sums that threads change. On cache lines of their own, because requests that must fail read
/// the other fields.
#[repr(align(128))]
struct ChargeSums {
    /// Charges minus uncharges are the bytes that all magazines in caches, and all magazines with
    /// rounds in the depot, could hold if they were full. Both wrap. Maintained only if there is a
    /// bound.
    charges: AtomicU64,
    uncharges: AtomicU64,
}

impl CacheBound {
    pub(crate) fn new(max_cached_bytes: Option<u64>) -> Self {
        let bound = max_cached_bytes.unwrap_or(NO_BOUND);
        CacheBound {
            bound: AtomicU64::new(bound),
            ceiling: AtomicU64::new(bound),
            sums: ChargeSums { charges: AtomicU64::new(0), uncharges: AtomicU64::new(0) },
        }
    }

    /// Returns the most bytes that may be cached; `None` if there is no bound.
    pub(crate) fn max_cached_bytes(&self) -> Option<u64> {
        // Relaxed: see `set_max_cached_bytes`.
        Some(self.bound.load(Ordering::Relaxed)).filter(|bound| *bound != NO_BOUND)
    }

    pub(crate) fn set_max_cached_bytes(&self, bytes: u64) {
        // Release pairs with the Acquire in `charge`: a thread that charges against a greater bound
        // has raised the ceiling, and threads that see its charge see the ceiling.
        self.ceiling.fetch_max(bytes, Ordering::Relaxed);
        self.bound.store(bytes, Ordering::Release);
    }

    /// Sets the bound before any thread uses the instance.
    pub(crate) fn open(&self, bytes: u64) {
        // Relaxed, both: a thread that uses the instance later synchronizes with the caller first.
        self.ceiling.store(bytes.max(self.charged()), Ordering::Relaxed);
        self.bound.store(bytes, Ordering::Relaxed);
    }

    /// Charges a magazine of `capacity` rounds. Returns its charge, or `None` if the bound allows
    /// no more.
    pub(crate) fn charge(&self, capacity: usize, round_bytes: u64) -> Option<u64> {
        // Acquire pairs with the Release in `set_max_cached_bytes`.
        let bound = self.bound.load(Ordering::Acquire);
        if bound == NO_BOUND {
            return Some(0);
        }
        let bytes = (capacity as u64).saturating_mul(round_bytes);
        // Acquire pairs with the Release in `uncharge`: the charges include what was uncharged.
        let uncharges = self.sums.uncharges.load(Ordering::Acquire);
        // Relaxed: ordered by the fence below.
        let charge = |charges: u64| {
            let charged = charges.wrapping_sub(uncharges).checked_add(bytes)?;
            (charged <= bound).then(|| charges.wrapping_add(bytes))
        };
        self.sums.charges.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge).ok()?;
        // Release pairs with the Acquire fence in `max_free`: a thread that finds rounds missing in
        // the source sees them charged.
        fence(Ordering::Release);
        Some(bytes)
    }

    pub(crate) fn uncharge(&self, charge: u64) {
        if charge > 0 {
            // Release pairs with the Acquire in `charge` and `max_free`: a thread that sees the
            // bytes uncharged sees the rounds in the source.
            self.sums.uncharges.fetch_add(charge, Ordering::Release);
        }
    }

    /// Returns an upper bound of the bytes of all cached rounds. Only with a bound on them.
    #[inline(always)]
    pub(crate) fn charged(&self) -> u64 {
        // Acquire pairs with the Release in `uncharge`.
        let uncharges = self.sums.uncharges.load(Ordering::Acquire);
        // Relaxed: a counter.
        self.sums.charges.load(Ordering::Relaxed).wrapping_sub(uncharges)
    }

    /// Returns an upper bound of the bytes that were free in the source, as `free` reports, and in
    /// all caches together at the moment that `free` read them. Only with a bound on cached bytes.
    #[inline]
    pub(crate) fn max_free(&self, free: impl Fn() -> u64) -> u64 {
        // Acquire pairs with the Release in `uncharge`.
        let uncharges = self.sums.uncharges.load(Ordering::Acquire);
        let free = free();
        // Acquire pairs with the Release fence in `charge`.
        fence(Ordering::Acquire);
        // Relaxed: ordered by the fence.
        let charges = self.sums.charges.load(Ordering::Relaxed);
        free.saturating_add(charges.wrapping_sub(uncharges))
    }

    /// Returns a greater upper bound than [`max_free`](Self::max_free). It changes only with
    /// `free`, so requests that exceed it do not fetch the sums, which other threads write.
    #[inline(always)]
    pub(crate) fn max_free_fast(&self, free: impl Fn() -> u64) -> u64 {
        let free = free();
        // Acquire pairs with the Release fence in `charge`: the ceiling was raised before.
        fence(Ordering::Acquire);
        // Relaxed: ordered by the fence.
        free.saturating_add(self.ceiling.load(Ordering::Relaxed))
    }
}

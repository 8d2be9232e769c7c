//! *Usage*: the blocks and bytes that all shards hold together, against the limits.
//!
//! A block is charged before its bytes are written and credited when it leaves the index, so what
//! is charged never exceeds a limit. A charge is made only if it fits: two insertions that compete
//! cannot both exceed the limit and make each other fail.

use crate::cache::policy::AgeClock;
use crate::sync::{AtomicU64, Ordering};

/// The limits of a cache; `u64::MAX` is no limit.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct CacheLimits {
    pub(in crate::cache) bytes: u64,
    pub(in crate::cache) blocks: u64,
}

/// The charged blocks and bytes. On cache lines of its own: insertions into a cache that is not
/// full write here. One that takes over the block of its victim takes over the charge, too.
#[derive(Debug)]
#[repr(align(128))]
pub(in crate::cache) struct Usage {
    bytes: AtomicU64,
    blocks: AtomicU64,
    /// The clock of the ages.
    pub(in crate::cache) clock: AgeClock,
    insertion_failures: AtomicU64,
    pub(in crate::cache) limits: CacheLimits,
}

impl Usage {
    pub(in crate::cache) fn new(limits: CacheLimits) -> Self {
        let zero = || AtomicU64::new(0);
        Usage {
            bytes: zero(),
            blocks: zero(),
            clock: AgeClock::default(),
            insertion_failures: zero(),
            limits,
        }
    }

    /// Charges a block of `len` bytes. Returns false and charges nothing if that would exceed a
    /// limit.
    pub(in crate::cache) fn charge(&self, len: u64) -> bool {
        if !add_within(&self.blocks, 1, self.limits.blocks) {
            return false;
        }
        let fits = add_within(&self.bytes, len, self.limits.bytes);
        if !fits {
            // Relaxed: as in `add_within`.
            self.blocks.fetch_sub(1, Ordering::Relaxed);
        }
        fits
    }

    /// Returns whether a charge of `len` bytes would exceed a limit now.
    #[inline]
    pub(in crate::cache) fn is_full(&self, len: u64) -> bool {
        let CacheLimits { bytes, blocks } = self.limits;
        self.blocks() >= blocks || self.bytes().checked_add(len).is_none_or(|sum| sum > bytes)
    }

    /// Removes the charge of a block of `len` bytes.
    pub(in crate::cache) fn credit(&self, len: u64) {
        // Relaxed: as in `add_within`.
        self.blocks.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(len, Ordering::Relaxed);
    }

    pub(in crate::cache) fn bytes(&self) -> u64 {
        // Relaxed: a figure for itself.
        self.bytes.load(Ordering::Relaxed)
    }

    pub(in crate::cache) fn blocks(&self) -> u64 {
        // Relaxed: a figure for itself.
        self.blocks.load(Ordering::Relaxed)
    }

    pub(in crate::cache) fn count_failure(&self) {
        // Relaxed: a figure for itself.
        self.insertion_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::cache) fn insertion_failures(&self) -> u64 {
        // Relaxed: a figure for itself.
        self.insertion_failures.load(Ordering::Relaxed)
    }
}

/// Adds to a sum unless it would exceed `limit`.
fn add_within(sum: &AtomicU64, more: u64, limit: u64) -> bool {
    let within = |sum: u64| sum.checked_add(more).filter(|&sum| sum <= limit);
    // Relaxed: the sum guards no memory; the blocks themselves pass through the locks of the shards
    // and the pool.
    sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn usage(bytes: u64, blocks: u64) -> Usage {
        Usage::new(CacheLimits { bytes, blocks })
    }

    #[test]
    fn a_charge_that_exceeds_a_limit_charges_nothing() {
        let usage = usage(10, 2);
        assert!(usage.charge(6));
        assert!(!usage.charge(5) && usage.is_full(5) && !usage.is_full(4));
        assert_eq!((usage.blocks(), usage.bytes()), (1, 6));
        assert!(usage.charge(4));
        assert!(!usage.charge(0) && usage.is_full(0), "two blocks are the limit");
        usage.credit(6);
        assert_eq!((usage.blocks(), usage.bytes()), (1, 4));
        assert!(!usage.charge(u64::MAX) && usage.is_full(u64::MAX), "sums do not overflow");
    }

    #[test]
    fn threads_never_exceed_the_limit_together() {
        let usage = usage(100, u64::MAX);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..if cfg!(miri) { 20 } else { 5_000 } {
                        if usage.charge(40) {
                            assert!(usage.bytes() <= 100);
                            usage.credit(40);
                        }
                    }
                });
            }
        });
        assert_eq!((usage.blocks(), usage.bytes()), (0, 0));
    }
}

//! *Failure counts*: the number of failed requests of a pool, by reason.
//!
//! In a full pool most requests fail, in all threads at once, and a failed request writes nothing.
//! Counting must not make these threads wait for one cache line. The counters therefore occupy
//! several lines. Each of the first threads owns a line, and counts by plain stores; later threads
//! share the other lines, and count by atomic additions.

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;

use serde::Serialize;

use crate::offset::AllocError;
use crate::sync::{AtomicU64, Ordering};

/// Number of lines with an owner, and number of shared lines.
const LINES: usize = 16;
/// Number of reasons.
const REASONS: usize = 8;

/// Failed requests, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Failures {
    /// No free range was long enough. A [cache](crate::cache::KvCache) that has filled its pool
    /// fails to allocate once for each value.
    pub out_of_space: u64,
    /// No ready range was long enough, and other parts were being provisioned.
    pub not_ready: u64,
    /// The request exceeds the longest range that this pool can have.
    pub too_large: u64,
    /// The request was for 0 bytes.
    pub zero_size: u64,
    /// The alignment is not a power of two, or is too large.
    pub bad_align: u64,
    /// The request was for 0 ranges.
    pub no_ranges: u64,
    /// The metadata has no space for another range.
    pub too_many_ranges: u64,
    /// All other reasons.
    pub other: u64,
}

impl Failures {
    /// Returns each reason, as the label `reason` has it, with its count.
    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Failures {
            out_of_space,
            not_ready,
            too_large,
            zero_size,
            bad_align,
            no_ranges,
            too_many_ranges,
            other,
        } = *self;
        [
            ("out_of_space", out_of_space),
            ("not_ready", not_ready),
            ("too_large", too_large),
            ("zero_size", zero_size),
            ("bad_align", bad_align),
            ("no_ranges", no_ranges),
            ("too_many_ranges", too_many_ranges),
            ("other", other),
        ]
        .into_iter()
    }

    /// Returns the sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_reason().map(|(_, count)| count).sum()
    }
}

/// The counters of a pool's failures.
#[derive(Default)]
pub(in crate::pool) struct FailureCounts {
    own: [Line; LINES],
    shared: [Line; LINES],
}

#[derive(Default)]
#[repr(align(128))]
struct Line([AtomicU64; REASONS]);

impl FailureCounts {
    /// Counts a failure of the offset layer.
    #[inline]
    pub(in crate::pool) fn count(&self, error: &AllocError) {
        self.more(match error {
            AllocError::OutOfSpace { .. } => 0,
            AllocError::TooLarge { .. } => 2,
            AllocError::ZeroSize => 3,
            AllocError::BadAlign { .. } | AllocError::AlignTooLarge { .. } => 4,
            AllocError::NoRanges { .. } => 5,
            AllocError::TooManyRanges { .. } => 6,
            _ => 7,
        });
    }

    /// Counts a request that failed because not enough of the pool was ready.
    pub(in crate::pool) fn count_not_ready(&self) {
        self.more(1);
    }

    #[inline]
    fn more(&self, reason: usize) {
        let line = line();
        match self.own.get(line) {
            Some(Line(counts)) => {
                // Relaxed, both: no other thread writes here.
                let count = counts[reason].load(Ordering::Relaxed);
                counts[reason].store(count + 1, Ordering::Relaxed);
            }
            // Relaxed: a count.
            None => _ = self.shared[line % LINES].0[reason].fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(in crate::pool) fn failures(&self) -> Failures {
        let lines = || self.own.iter().chain(&self.shared);
        // Relaxed: counts.
        let sum = |reason: usize| lines().map(|line| line.0[reason].load(Ordering::Relaxed)).sum();
        Failures {
            out_of_space: sum(0),
            not_ready: sum(1),
            too_large: sum(2),
            zero_size: sum(3),
            bad_align: sum(4),
            no_ranges: sum(5),
            too_many_ranges: sum(6),
            other: sum(7),
        }
    }
}

/// The number of this thread, in the order in which threads had their first failure. None is
/// passed twice.
#[inline]
fn line() -> usize {
    thread_local! {
        static LINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    match LINE.get() {
        usize::MAX => {
            let line = next();
            LINE.set(line);
            line
        }
        line => line,
    }
}

#[cold]
#[inline(never)]
fn next() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: the numbers are different, which is all.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_counted_under_its_name() {
        let failures = FailureCounts::default();
        let errors = [
            (AllocError::OutOfSpace { requested: 1, free: 0, largest_free: 0 }, "out_of_space"),
            (AllocError::TooLarge { requested: 1, limit: 0 }, "too_large"),
            (AllocError::ZeroSize, "zero_size"),
            (AllocError::BadAlign { align: 3 }, "bad_align"),
            (AllocError::NoRanges { requested: 1 }, "no_ranges"),
            (AllocError::TooManyRanges { ranges: 1 }, "too_many_ranges"),
            (AllocError::CannotExtend { requested: 1, max: 0 }, "other"),
        ];
        for (number, (error, _)) in errors.iter().enumerate() {
            (0..=number).for_each(|_| failures.count(error));
        }
        failures.count_not_ready();
        let found: Vec<_> = failures.failures().by_reason().collect();
        for (number, (_, reason)) in errors.iter().enumerate() {
            assert!(found.contains(&(reason, number as u64 + 1)), "{reason}: {found:?}");
        }
        assert!(found.contains(&("not_ready", 1)), "{found:?}");
        assert_eq!(failures.failures().total(), 28 + 1);
    }

    #[test]
    fn threads_count_together() {
        let failures = FailureCounts::default();
        std::thread::scope(|scope| {
            // Those with lines of their own, and others.
            for _ in 0..2 * LINES {
                scope.spawn(|| (0..100).for_each(|_| failures.count(&AllocError::ZeroSize)));
            }
        });
        assert_eq!(failures.failures().zero_size, 200 * LINES as u64);
    }
}

//! *Latency*: the time of requests, measured once every N of them.
//!
//! A request of a hot size takes some nanoseconds, and reading the clock twice takes ten times as
//! long. One request in N is therefore measured. The distance to the next measured request is
//! random, because a fixed one would meet periodic traffic always at the same point of its period.
//! The time of two readings alone is measured when the pool is built, and subtracted.
//!
//! Buckets are a quarter of a power of two wide: the middle of a bucket is within 12.5 % of every
//! time in it.

use std::cell::Cell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, Ordering};

/// Number of buckets: they reach up to 2^41 ns, about 37 minutes. The last one has all longer
/// times.
const BUCKETS: usize = 160;
/// Number of readings of the clock that measure how long one reading takes.
const READINGS: usize = 64;

/// The histogram of a pool.
pub(in crate::pool) struct Latency {
    one_in: u32,
    /// Nanoseconds between two readings of the clock with nothing between them.
    clock: u64,
    buckets: Box<[AtomicU64]>,
}

/// The durations of the measured requests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatencyFigures {
    /// On average one request in this number was measured.
    pub one_in: u32,
    /// Times in order, each the middle of a bucket, with the number of requests in the bucket. No
    /// bucket is empty.
    pub times: Vec<(Duration, u64)>,
}

impl LatencyFigures {
    /// Returns the number of measured requests.
    #[must_use]
    pub fn measured(&self) -> u64 {
        self.times.iter().map(|(_, count)| count).sum()
    }

    /// Returns the time within which a share of the requests ended; `None` if none was measured.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let wanted = (self.measured() as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.times
            .iter()
            .find(|(_, count)| (seen += count, seen >= wanted).1)
            .map(|(time, _)| *time)
    }
}

thread_local! {
    /// The requests of this thread until the next measurement, and the state of the random numbers
    /// that draw the next interval. All pools share it.
    static DRAWN: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

impl Latency {
    pub(in crate::pool) fn new(one_in: u32) -> Latency {
        let clock = (0..READINGS).map(|_| {
            let start = Instant::now();
            black_box(());
            start.elapsed().as_nanos() as u64
        });
        let clock = clock.min().unwrap_or(0);
        Latency {
            one_in: one_in.max(1),
            clock,
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Runs a request, and measures its duration if it is the request's turn.
    #[inline]
    pub(in crate::pool) fn measure<T>(&self, request: impl FnOnce() -> T) -> T {
        let (left, drawn) = DRAWN.get();
        if left > 1 {
            DRAWN.set((left - 1, drawn));
            return request();
        }
        self.measure_now(drawn, request)
    }

    #[cold]
    #[inline(never)]
    fn measure_now<T>(&self, drawn: u32, request: impl FnOnce() -> T) -> T {
        let seed = if drawn == 0 { seed() } else { drawn };
        let next = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) | 1;
        // Between 1 and twice the mean.
        let wait = 1 + ((u64::from(next >> 8) * (2 * u64::from(self.one_in) - 1)) >> 24) as u32;
        DRAWN.set((wait, next));
        if drawn == 0 && self.one_in > 1 {
            // The first request of a thread makes its magazines, so its duration is not typical.
            return request();
        }
        let start = Instant::now();
        let done = request();
        self.note(start.elapsed());
        done
    }

    fn note(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).saturating_sub(self.clock);
        // Relaxed: a count.
        self.buckets[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::pool) fn figures(&self) -> LatencyFigures {
        // Relaxed: counts.
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).enumerate();
        let times =
            counts.filter(|(_, count)| *count > 0).map(|(bucket, count)| (middle(bucket), count));
        LatencyFigures { one_in: self.one_in, times: times.collect() }
    }
}

/// Returns a number that differs from thread to thread and is not 0.
fn seed() -> u32 {
    DRAWN.with(|drawn| (std::ptr::from_ref(drawn).addr() >> 4) as u32) | 1
}

/// Returns the bucket of a duration in nanoseconds.
fn bucket(nanos: u64) -> usize {
    if nanos < 4 {
        return nanos as usize;
    }
    let log2 = nanos.ilog2();
    let quarter = ((nanos >> (log2 - 2)) & 3) as usize;
    ((log2 as usize - 1) * 4 + quarter).min(BUCKETS - 1)
}

/// Returns the middle of a bucket.
fn middle(bucket: usize) -> Duration {
    if bucket < 4 {
        return Duration::from_nanos(bucket as u64);
    }
    let log2 = bucket / 4 + 1;
    let width = 1u64 << (log2 - 2);
    Duration::from_nanos((4 + bucket as u64 % 4) * width + width / 2)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_bucket_is_near_all_that_is_in_it() {
        let mut last = 0;
        for nanos in
            (0..5000).chain((13..41).flat_map(|log2| [1 << log2, 3 << (log2 - 1), (2 << log2) - 1]))
        {
            let bucket = bucket(nanos);
            assert!(bucket >= last, "buckets are in order");
            last = bucket;
            let middle = middle(bucket).as_nanos() as u64;
            assert!(
                middle.abs_diff(nanos) * 8 <= nanos,
                "{nanos} ns are in a bucket of {middle} ns"
            );
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn about_one_in_so_many_is_measured() {
        for one_in in [1u32, 2, 10, 100] {
            let latency = Latency::new(one_in);
            // A thread of its own, for its own draws.
            let measured = std::thread::scope(|scope| {
                let run = || (0..100_000).for_each(|_| latency.measure(|| ()));
                scope.spawn(run).join().expect("it does not panic");
                latency.figures().measured()
            });
            let expected = 100_000 / u64::from(one_in);
            assert!(measured.abs_diff(expected) <= expected / 10, "1 in {one_in}: {measured}");
        }
    }

    #[test]
    fn quantiles_are_those_of_what_was_noted() {
        let latency = Latency { clock: 5, ..Latency::new(1) };
        assert_eq!(latency.figures().quantile(0.5), None);
        for nanos in [8u64, 13, 13, 105] {
            latency.note(Duration::from_nanos(nanos));
        }
        let figures = latency.figures();
        assert_eq!(figures.times.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 2, 1]);
        assert_eq!(figures.quantile(0.0), Some(Duration::from_nanos(3)));
        assert_eq!(figures.quantile(0.5), Some(middle(bucket(8))));
        assert_eq!(figures.quantile(1.0), Some(middle(bucket(100))));
    }
}

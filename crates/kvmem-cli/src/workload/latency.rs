//! Latency of single calls, and what it costs to measure it.
//!
//! A call is timed between two readings of the monotonic clock. The readings take some tens of
//! nanoseconds, about as long as the call. The cost of an empty measurement is therefore measured
//! beforehand and reported with the figures, which *include* it.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies of one kind of call, to three significant digits.
pub struct Latency {
    histogram: Histogram<u64>,
}

/// The figures of a [`Latency`], in nanoseconds; all zero when nothing was recorded.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LatencyFigures {
    /// Calls recorded.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Half of the calls took no longer.
    pub p50: u64,
    /// 99 % of the calls took no longer.
    pub p99: u64,
    /// 99.9 % of the calls took no longer.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

/// The longest latency that is resolved: an hour.
const CEILING_NS: u64 = 3_600_000_000_000;

impl Latency {
    /// Makes an empty record.
    pub fn new() -> Self {
        // The histogram can hold 1 ns to an hour with three digits, so this cannot fail.
        let histogram =
            Histogram::new_with_bounds(1, CEILING_NS, 3).expect("the bounds are valid constants");
        Latency { histogram }
    }

    /// Records a call that took `took`.
    #[inline]
    pub fn record(&mut self, took: Duration) {
        self.histogram.saturating_record(took.as_nanos() as u64);
    }

    /// Calls recorded.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Adds the record of another.
    pub fn add(&mut self, other: &Latency) {
        // Both have the same bounds, so every value of one fits the other.
        self.histogram.add(&other.histogram).expect("the bounds are the same");
    }

    /// The figures so far.
    pub fn figures(&self) -> LatencyFigures {
        let at = |quantile| self.histogram.value_at_quantile(quantile);
        LatencyFigures {
            count: self.histogram.len(),
            mean: self.histogram.mean(),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: self.histogram.max(),
        }
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs `call` and returns its result and its time.
#[inline]
pub fn timed<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let value = call();
    (value, start.elapsed())
}

/// The median latency, in nanoseconds, that an empty call is recorded with on this machine.
pub fn timer_overhead_ns() -> u64 {
    let mut empty = Latency::new();
    for _ in 0..20_000 {
        empty.record(timed(|| std::hint::black_box(())).1);
    }
    empty.figures().p50
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_call_shows_in_the_tail_only() {
        let mut latency = Latency::new();
        for _ in 0..199 {
            latency.record(timed(|| ()).1);
        }
        let (value, took) = timed(|| {
            std::thread::sleep(Duration::from_millis(20));
            7
        });
        assert_eq!(value, 7);
        latency.record(took);
        let figures = latency.figures();
        assert_eq!(figures.count, 200);
        assert!(figures.p50 < 10_000_000, "{figures:?}");
        assert!(figures.p999 >= 19_900_000 && figures.max >= figures.p999, "{figures:?}");
    }
}

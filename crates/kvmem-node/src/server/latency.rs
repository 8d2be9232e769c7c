//! [`Latency`]: how long calls take in the server.
//!
//! The time of a call ends when all calls that were served with it are answered: those of one
//! quantum. It begins when the loop could have seen the call: when it began to serve what is ready,
//! or at the end of the quantum before. Work of the loop between two times of serving, such as a
//! part of a change of the size, counts too, unless the loop slept after it. So the time is an
//! upper bound of that from the arrival of a call to its answer, and no clock is read for it alone.
//! Calls that wait for the tier or for space are answered later, which does not count.

use std::time::{Duration, Instant};

use crate::node::NodeStats;

/// Classes of times: at most 2^12 ns, 2^14, … 2^26, and longer.
const CLASSES: usize = 9;

/// Counts of calls by their time.
#[derive(Debug)]
pub(super) struct Latency {
    counts: [u64; CLASSES],
    /// Calls that were served since the last quantum.
    pub(super) served: u64,
    /// When the loop could have seen the next call; `None`: it has slept since.
    from: Option<Instant>,
}

impl Latency {
    pub(super) fn new() -> Latency {
        Latency { counts: [0; CLASSES], served: 0, from: None }
    }

    /// Begins to serve what is ready.
    pub(super) fn begin(&mut self, now: Instant) {
        self.from.get_or_insert(now);
    }

    /// Ends a quantum.
    pub(super) fn end(&mut self, now: Instant) {
        let from = self.from.replace(now).unwrap_or(now);
        let time = now.saturating_duration_since(from);
        self.counts[class_of(time)] += std::mem::take(&mut self.served);
    }

    /// The loop may have slept.
    pub(super) fn slept(&mut self) {
        self.from = None;
    }

    /// Adds the counts to the statistics.
    pub(super) fn fill(&self, stats: &mut NodeStats) {
        let mut sum = 0;
        let up_to = self.counts.map(|count| {
            sum += count;
            sum
        });
        [
            stats.calls_within_4us,
            stats.calls_within_16us,
            stats.calls_within_64us,
            stats.calls_within_256us,
            stats.calls_within_1ms,
            stats.calls_within_4ms,
            stats.calls_within_16ms,
            stats.calls_within_64ms,
            stats.calls,
        ] = up_to;
    }
}

fn class_of(time: Duration) -> usize {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let bits = u64::BITS - ns.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(11) as usize / 2).min(CLASSES - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_by_powers_of_four() {
        for (class, limit) in (12..=26).step_by(2).enumerate() {
            assert_eq!(class_of(Duration::from_nanos(1 << limit)), class);
            assert_eq!(class_of(Duration::from_nanos((1 << limit) + 1)), class + 1);
        }
        assert_eq!((class_of(Duration::ZERO), class_of(Duration::MAX)), (0, CLASSES - 1));
    }

    #[test]
    fn work_between_two_times_of_serving_counts_unless_the_loop_slept() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        let mut latency = Latency::new();
        latency.begin(at(0));
        latency.served = 3;
        latency.end(at(10));
        // A part of other work, and then a call.
        latency.begin(at(2000));
        latency.served = 1;
        latency.end(at(2005));
        latency.slept();
        latency.begin(at(9_000_000));
        latency.served = 1;
        latency.end(at(9_000_003));
        let mut stats = NodeStats::default();
        latency.fill(&mut stats);
        let found = [stats.calls_within_4us, stats.calls_within_16us, stats.calls_within_1ms];
        assert_eq!((found, stats.calls_within_4ms, stats.calls), ([1, 4, 4], 5, 5));
    }
}

//! What time is.
//!
//! A loop computes and never waits, so the processor time of its thread is the time it takes. On an
//! idle machine that is wall time; on a shared one it leaves out what the other processes take,
//! which wall time would charge to whichever contender happened to run.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Measures the processor time of the thread that started it.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Duration);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self(now())
    }

    /// Nanoseconds per operation since the start.
    pub fn ns_per_op(self, ops: u64) -> f64 {
        now().saturating_sub(self.0).as_nanos() as f64 / ops.max(1) as f64
    }
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Never negative, and nanoseconds stay below 10^9.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_costs_nothing_and_work_does() {
        let watch = Stopwatch::start();
        std::thread::sleep(Duration::from_millis(50));
        let slept = watch.ns_per_op(1);
        assert!(slept < 25e6, "{slept} ns while asleep");
        let mut sum = 0u64;
        while watch.ns_per_op(1) < slept + 1e6 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0 && watch.ns_per_op(10) < watch.ns_per_op(1));
    }
}

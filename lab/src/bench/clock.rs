//! The clock of single-threaded loops: processor time.
//!
//! A loop computes and never waits, so its duration is the processor time of its thread. On an idle
//! machine that equals wall time. On a shared machine it excludes the time of other processes,
//! which wall time would charge to the contender that happened to run.
//!
//! The time comes from libc and not from rustix: rustix finds the vDSO by itself, and valgrind,
//! which hides the vDSO from a program's libraries, crashes on that.

use std::mem::MaybeUninit;
use std::time::Duration;

/// Measures the processor time of the thread that started it.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Duration);

impl Stopwatch {
    /// Starts measuring now.
    pub fn start() -> Self {
        Self(now())
    }

    /// Returns the nanoseconds per operation since the start.
    pub fn ns_per_op(self, ops: u64) -> f64 {
        now().saturating_sub(self.0).as_nanos() as f64 / ops.max(1) as f64
    }
}

fn now() -> Duration {
    let mut time = MaybeUninit::uninit();
    // SAFETY: `time` is valid for writes of a `timespec`.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr()) };
    assert_eq!(result, 0, "CLOCK_THREAD_CPUTIME_ID is readable on every Linux kernel");
    // SAFETY: the call succeeded, so it has written the whole `timespec`.
    let time = unsafe { time.assume_init() };
    // Never negative; nanoseconds stay below 10^9.
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

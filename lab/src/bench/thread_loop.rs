//! The loop of one thread of a team: a fixed number of steps to warm up, then as many as the time
//! allows.

use crate::bench::team::Member;

/// The result of a thread's loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadLoop {
    calls: u64,
    nanoseconds: f64,
}

impl ThreadLoop {
    /// Runs the loop of a thread whose own tables exist. `steps` makes some calls and returns their
    /// number; its argument tells whether the clock runs. It is called `warm` times before the
    /// clock starts, and then until the time is over, which is checked after each call of
    /// `steps`.
    #[inline]
    pub(crate) fn run<E>(
        member: &Member<'_>,
        warm: u32,
        mut steps: impl FnMut(bool) -> Result<u64, E>,
    ) -> Result<ThreadLoop, E> {
        member.ready();
        for _ in 0..warm {
            steps(false)?;
        }
        let mut calls = 0;
        let start = member.start();
        loop {
            calls += steps(true)?;
            if !member.keeps_running() {
                break;
            }
        }
        let nanoseconds = start.elapsed().as_nanos() as f64;
        member.done();
        Ok(ThreadLoop { calls, nanoseconds })
    }
}

/// Returns the million calls per second of all threads together.
pub(crate) fn mops(threads: &[ThreadLoop]) -> anyhow::Result<f64> {
    let per_ns: f64 =
        threads.iter().map(|thread| thread.calls as f64 / thread.nanoseconds.max(1.0)).sum();
    anyhow::ensure!(per_ns > 0.0, "no call returned in the given time: increase it");
    Ok(per_ns * 1e3)
}

//! A team of threads that run one function at the same time for a given duration.
//!
//! The suites measure contention, so all threads must be running together. A loop of fixed length
//! does not guarantee that: the first thread may finish before the last has started. The team fixes
//! the duration instead. All threads are ready before the clock starts, none stops before the time
//! is over, and each counts its calls and measures its time. Threads are bound to processors one by
//! one, repeatedly if there are more threads than processors.
//!
//! A thread meets the leading thread at five barriers: *ready* (its own tables exist), *measured*
//! (the leader has read the memory in use), *start*, *done* and *measured again*. A thread that
//! ends early, even by a panic, still passes the remaining barriers, so no other thread blocks.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Barriers that each thread passes.
const BARRIERS: u32 = 5;

/// Runs `work` on threads of their own, with the numbers from 0. No thread works before `lead`,
/// which runs on this thread, has called its argument. Returns the results in the order of the
/// threads.
pub(crate) fn side_by_side<T: Send>(
    threads: usize,
    work: &(dyn Fn(usize) -> T + Sync),
    lead: impl FnOnce(&dyn Fn()),
) -> Result<Vec<T>> {
    let go: OnceLock<bool> = OnceLock::new();
    // Nothing else sets it.
    let set = |works| go.set(works).unwrap_or_default();
    thread::scope(|scope| {
        let mut running = Vec::with_capacity(threads);
        for number in 0..threads {
            let go = &go;
            let waits = move || go.wait().then(|| work(number));
            let thread = Builder::new().name("kvmem-bench".into()).spawn_scoped(scope, waits);
            running.push(thread.inspect_err(|_| set(false)).with_context(|| {
                format!(
                    "cannot start thread {} of {threads}: measure with fewer threads, or raise \
                     the limit on processes (ulimit -u, pids.max of the control group)",
                    number + 1
                )
            })?);
        }
        lead(&|| set(true));
        // All are joined: a panic of a thread that is not joined would pass on to the scope.
        let ended: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
        let result = |one: thread::Result<Option<T>>| one.ok().flatten();
        ended
            .into_iter()
            .map(|one| result(one).ok_or_else(|| anyhow!("a thread panicked")))
            .collect()
    })
}

/// The state that the threads of a team share.
struct TeamState {
    barrier: Barrier,
    over: AtomicBool,
}

/// One thread's membership in the team.
pub(crate) struct Member<'a> {
    team: &'a TeamState,
    barriers_passed: Cell<u32>,
    /// The number of the thread, from 0.
    pub(crate) index: usize,
    /// Whether there are more threads than processors, so a waiting thread should yield.
    pub(crate) oversubscribed: bool,
}

impl Member<'_> {
    /// Reports that the thread's own tables exist. The leader reads the memory in use before this
    /// returns.
    pub(crate) fn ready(&self) {
        self.wait();
        self.wait();
    }

    /// Waits for all other threads and starts the clock.
    pub(crate) fn start(&self) -> Instant {
        self.wait();
        Instant::now()
    }

    /// Returns whether there is time left.
    #[inline]
    pub(crate) fn keeps_running(&self) -> bool {
        // Relaxed: the flag publishes no other data.
        !self.team.over.load(Ordering::Relaxed)
    }

    /// Reports that the thread's work is done. The leader reads the memory in use before this
    /// returns.
    pub(crate) fn done(&self) {
        self.wait();
        self.wait();
    }

    fn wait(&self) {
        self.barriers_passed.set(self.barriers_passed.get() + 1);
        self.team.barrier.wait();
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        while self.barriers_passed.get() < BARRIERS {
            self.wait();
        }
    }
}

/// The results of the threads, and the leader's readings before and after.
#[derive(Debug)]
pub(crate) struct TeamResult<T, S> {
    /// One result for each thread, in order.
    pub(crate) threads: Vec<T>,
    /// The reading when the threads were ready.
    pub(crate) before: S,
    /// The reading when they were done.
    pub(crate) after: S,
}

/// Runs `work` on `threads` threads for `time`; calls `read` before and after, while no thread
/// works.
pub(crate) fn run<T: Send, S>(
    threads: u32,
    time: Duration,
    work: impl Fn(&Member<'_>) -> T + Sync,
    read: impl Fn() -> S,
) -> Result<TeamResult<T, S>> {
    let (cores, threads) = (cores(), threads as usize);
    let oversubscribed = threads > cores.len();
    let team = TeamState { barrier: Barrier::new(threads + 1), over: AtomicBool::new(false) };
    let mut read_twice = None;
    let work = |index| {
        let member = Member { team: &team, barriers_passed: Cell::new(0), index, oversubscribed };
        bind(&cores, index);
        work(&member)
    };
    let threads = side_by_side(threads, &work, |go| {
        go();
        team.barrier.wait();
        let before = read();
        team.barrier.wait();
        team.barrier.wait();
        thread::sleep(time);
        // Relaxed: see `keeps_running`.
        team.over.store(true, Ordering::Relaxed);
        team.barrier.wait();
        read_twice = Some((before, read()));
        team.barrier.wait();
    })?;
    let (before, after) = read_twice.context("the leader has read twice")?;
    Ok(TeamResult { threads, before, after })
}

/// Returns the processors that this process may use; none if the system does not report them.
pub(crate) fn cores() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect()
}

/// Binds this thread, the one with the number `index`, to one of `cores`. Without permission the
/// thread runs unbound.
pub(crate) fn bind(cores: &[usize], index: usize) {
    if !cores.is_empty() {
        let mut one = CpuSet::new();
        one.set(cores[index % cores.len()]);
        let _ = sched_setaffinity(None, &one);
    }
}

/// The result of a thread's loop: a fixed number of steps to warm up, then as many as the time
/// allows.
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
pub(crate) fn mops(threads: &[ThreadLoop]) -> Result<f64> {
    let per_ns: f64 =
        threads.iter().map(|thread| thread.calls as f64 / thread.nanoseconds.max(1.0)).sum();
    ensure!(per_ns > 0.0, "no call returned in the given time: increase it");
    Ok(per_ns * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn all_threads_work_between_the_readings_and_a_panicking_one_blocks_no_other() {
        let at_work = AtomicU32::new(0);
        let work = |member: &Member<'_>| {
            member.ready();
            at_work.fetch_add(1, Ordering::SeqCst);
            member.start();
            while member.keeps_running() {
                thread::yield_now();
            }
            member.done();
            at_work.fetch_sub(1, Ordering::SeqCst);
            member.index
        };
        let time = Duration::from_millis(20);
        let start = Instant::now();
        let result = run(3, time, work, || at_work.load(Ordering::SeqCst)).unwrap();
        assert!(start.elapsed() >= time);
        assert_eq!((result.before, result.after), (0, 3));
        assert_eq!(result.threads, [0, 1, 2]);

        let work = |member: &Member<'_>| assert_ne!(member.index, 1, "one of them panics");
        assert!(run(2, Duration::ZERO, work, || ()).is_err());
    }
}

//! A team of threads that run one function at the same time for a given duration.
//!
//! The suites measure contention, so all threads must be running together. A loop of fixed length
//! does not guarantee that: the first thread may finish before the last has started. The team fixes
//! the duration instead. All threads are ready before the clock starts, none stops before the time
//! is over, and each counts its calls and measures its time. Threads are bound to processors one by
//! one, repeatedly if there are more threads than processors.
//!
//! The functions of a team take the work as a trait object: it is called once a thread, and the
//! compiler then translates threads and barriers once for all loops, not once for each.
//!
//! A thread meets the leading thread at five barriers: *ready* (its own tables exist), *measured*
//! (the leader has read the memory in use), *start*, *done* and *measured again*. A thread that
//! ends early, even by a panic, still passes the remaining barriers, so no other thread blocks.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, PoisonError};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Barriers that each thread passes.
const BARRIERS: u32 = 5;

/// A thread could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot start thread {number} of {threads}: {reason}; measure with fewer threads, \
     or raise the limit on processes (ulimit -u, pids.max of the control group)"
)]
pub struct SpawnError {
    /// The number of the thread, from 1.
    pub number: usize,
    /// The number of threads to start.
    pub threads: usize,
    /// The system's error.
    pub reason: String,
}

/// The error of a team that produced no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TeamError {
    /// A thread panicked.
    #[error("a thread panicked")]
    Panicked,
    /// A thread could not be started, so none has worked.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
}

/// The work of one thread.
pub(crate) type Work<'scope> = Box<dyn FnOnce() + Send + 'scope>;

/// Started threads that wait for [`WaitingThreads::go`]. Dropping it ends them without work.
pub(crate) struct WaitingThreads<'scope> {
    running: Vec<ScopedJoinHandle<'scope, ()>>,
    go: Arc<OnceLock<bool>>,
}

/// Starts a thread for each of `works`; the threads wait for [`WaitingThreads::go`].
///
/// # Errors
/// [`SpawnError`] if a thread cannot be started; those already started end without working.
pub(crate) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    works: Vec<Work<'scope>>,
) -> Result<WaitingThreads<'scope>, SpawnError> {
    let threads = works.len();
    let mut started = WaitingThreads { running: Vec::with_capacity(threads), go: Arc::default() };
    for (index, work) in works.into_iter().enumerate() {
        let go = Arc::clone(&started.go);
        let thread = Builder::new().name("kvmem-bench".into());
        let wait_and_work = move || {
            if *go.wait() {
                work();
            }
        };
        match thread.spawn_scoped(scope, wait_and_work) {
            Ok(thread) => started.running.push(thread),
            Err(error) => {
                return Err(SpawnError { number: index + 1, threads, reason: error.to_string() });
            }
        }
    }
    Ok(started)
}

impl<'scope> WaitingThreads<'scope> {
    /// Lets the threads work. Returns a handle of each, in the order of the works.
    pub(crate) fn go(mut self) -> Vec<ScopedJoinHandle<'scope, ()>> {
        let _ = self.go.set(true);
        std::mem::take(&mut self.running)
    }
}

impl Drop for WaitingThreads<'_> {
    fn drop(&mut self) {
        // Has no effect after `go`.
        let _ = self.go.set(false);
    }
}

/// The results of threads, which store them by the threads' numbers.
pub(crate) struct Results<T>(Vec<Mutex<Option<T>>>);

impl<T> Results<T> {
    /// Creates the results of `threads` threads, none of which has one yet.
    pub(crate) fn new(threads: u32) -> Self {
        Results((0..threads).map(|_| Mutex::new(None)).collect())
    }

    /// Stores the result of thread `index`.
    pub(crate) fn store(&self, index: usize, result: T) {
        *self.0[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }

    /// Returns all results, in the order of the threads.
    ///
    /// # Errors
    /// [`TeamError::Panicked`] if a thread ended without a result.
    pub(crate) fn all(self) -> Result<Vec<T>, TeamError> {
        let results = self.0.into_iter();
        let results = results.map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner));
        results.map(|result| result.ok_or(TeamError::Panicked)).collect()
    }
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
///
/// # Errors
/// [`TeamError`] if a thread panicked or could not be started.
pub(crate) fn run<T: Send, S>(
    threads: u32,
    time: Duration,
    work: impl Fn(&Member<'_>) -> T + Sync,
    read: impl Fn() -> S,
) -> Result<TeamResult<T, S>, TeamError> {
    let results = Results::new(threads);
    let (mut before, mut after) = (None, None);
    run_threads(
        threads,
        time,
        &|member| results.store(member.index, work(member)),
        &mut || before = Some(read()),
        &mut || after = Some(read()),
    )?;
    let threads = results.all()?;
    // A team without an error has been read twice.
    let (before, after) = before.zip(after).ok_or(TeamError::Panicked)?;
    Ok(TeamResult { threads, before, after })
}

/// Runs `work` on `threads` threads for `time`; calls `before` and `after` while no thread works.
fn run_threads(
    threads: u32,
    time: Duration,
    work: &(dyn Fn(&Member<'_>) + Sync),
    before: &mut dyn FnMut(),
    after: &mut dyn FnMut(),
) -> Result<(), TeamError> {
    let cores = cores();
    let oversubscribed = threads as usize > cores.len();
    let barrier = Barrier::new(threads as usize + 1);
    let team = TeamState { barrier, over: AtomicBool::new(false) };
    let team = &team;
    thread::scope(|scope| {
        let work_of = |index: usize| -> Work<'_> {
            let core = cores.get(index % cores.len().max(1)).copied();
            Box::new(move || {
                let member = Member { team, barriers_passed: Cell::new(0), index, oversubscribed };
                bind(core);
                work(&member);
            })
        };
        let running = start(scope, (0..threads as usize).map(work_of).collect())?.go();
        team.barrier.wait();
        before();
        team.barrier.wait();
        team.barrier.wait();
        thread::sleep(time);
        // Relaxed: see `keeps_running`.
        team.over.store(true, Ordering::Relaxed);
        team.barrier.wait();
        after();
        team.barrier.wait();
        joined(running)
    })
}

/// Waits for the threads' ends.
///
/// # Errors
/// [`TeamError::Panicked`] if a thread panicked.
pub(crate) fn joined(running: Vec<ScopedJoinHandle<'_, ()>>) -> Result<(), TeamError> {
    // All are joined: a panic of a thread that is not joined would pass on to the scope.
    let panicked = running.into_iter().map(|thread| thread.join().is_err()).filter(|&bad| bad);
    if panicked.count() == 0 { Ok(()) } else { Err(TeamError::Panicked) }
}

/// Returns the processors that this process may use; none if the system does not report them.
pub(crate) fn cores() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect()
}

/// Binds this thread to `core`. Without permission the thread runs unbound.
pub(crate) fn bind(core: Option<usize>) {
    if let Some(core) = core {
        let mut one = CpuSet::new();
        one.set(core);
        let _ = sched_setaffinity(None, &one);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn all_threads_work_between_the_readings_and_for_the_whole_time() {
        let at_work = AtomicU32::new(0);
        let read = || at_work.load(Ordering::SeqCst);
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
        let result = run(3, time, work, read).unwrap();
        assert!(start.elapsed() >= time);
        assert_eq!((result.before, result.after), (0, 3));
        assert_eq!(result.threads, [0, 1, 2]);
    }

    #[test]
    fn a_panicking_thread_blocks_no_other() {
        let work = |member: &Member<'_>| {
            member.ready();
            assert_ne!(member.index, 1, "one of them panics");
            member.start();
            member.done();
        };
        assert_eq!(run(2, Duration::ZERO, work, || ()).unwrap_err(), TeamError::Panicked);
    }
}

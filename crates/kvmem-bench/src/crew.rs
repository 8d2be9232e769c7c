//! *Crew*: threads that do the same thing side by side for a given time.
//!
//! Contention is what is measured, so the threads must be at work at the same time, and a loop of
//! fixed length easily is not: the first thread is done before the last has woken up. Here the time
//! is fixed instead. All threads are ready before the clock starts, none stops before it has run
//! out, and each counts what it did and how long it took. They are bound to processors one by one,
//! in turn where there are fewer processors than threads.
//!
//! A thread goes through five meetings with the one that leads: *ready* (its own tables are there),
//! *seen* (the leader has looked at the memory), *start*, *done* and *seen again*. A thread that
//! ends early, also by a panic, still attends those that are left, so nobody waits for it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const MEETINGS: u32 = 5;

/// A thread could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "thread {number} of {threads} cannot be started: {reason}; measure with fewer threads, or raise the limit on processes \
     (ulimit -u, pids.max of the control group)"
)]
pub struct NoThread {
    /// Which one, from 1.
    pub number: usize,
    /// How many were to be started.
    pub threads: usize,
    /// What the system says.
    pub reason: String,
}

/// Why there are no figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// A thread panicked.
    Panicked,
    /// A thread could not be started, so none has worked.
    NoThread(NoThread),
}

/// Threads that wait for a word: they work when all could be started, and end when one could not.
pub(crate) struct Started<'scope, T> {
    running: Vec<ScopedJoinHandle<'scope, Option<T>>>,
    go: Arc<OnceLock<bool>>,
}

/// Starts a thread for each of `works`, which wait for [`Started::go`].
///
/// # Errors
/// [`NoThread`]; those that were started end without having worked.
pub(crate) fn start<'scope, 'env, T: Send + 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    works: impl IntoIterator<Item = impl FnOnce() -> T + Send + 'scope>,
) -> Result<Started<'scope, T>, NoThread> {
    let works: Vec<_> = works.into_iter().collect();
    let threads = works.len();
    let mut started = Started { running: Vec::with_capacity(threads), go: Arc::default() };
    for (index, work) in works.into_iter().enumerate() {
        let go = Arc::clone(&started.go);
        let thread = Builder::new().name("kvmem-bench".into());
        match thread.spawn_scoped(scope, move || go.wait().then(work)) {
            Ok(thread) => started.running.push(thread),
            Err(error) => {
                return Err(NoThread { number: index + 1, threads, reason: error.to_string() });
            }
        }
    }
    Ok(started)
}

impl<'scope, T> Started<'scope, T> {
    /// Lets them work. Each handle gives what its thread found.
    pub(crate) fn go(mut self) -> Vec<ScopedJoinHandle<'scope, Option<T>>> {
        let _ = self.go.set(true);
        std::mem::take(&mut self.running)
    }
}

impl<T> Drop for Started<'_, T> {
    fn drop(&mut self) {
        // Too late where they work already.
        let _ = self.go.set(false);
    }
}

/// What the threads share.
struct Shift {
    gate: Barrier,
    over: AtomicBool,
}

/// A thread's place in the crew.
pub(crate) struct Place<'a> {
    shift: &'a Shift,
    attended: Cell<u32>,
    /// Which of the threads this is, from 0.
    pub(crate) index: usize,
    /// Whether there are more threads than processors, so that who waits should yield.
    pub(crate) crowded: bool,
}

impl Place<'_> {
    /// The thread's own tables are there: the memory in use is looked at before this returns.
    pub(crate) fn ready(&self) {
        self.meet();
        self.meet();
    }

    /// Waits for all others, and starts.
    pub(crate) fn start(&self) -> Instant {
        self.meet();
        Instant::now()
    }

    /// Whether the time has not run out.
    #[inline]
    pub(crate) fn goes_on(&self) -> bool {
        // Relaxed: a flag that carries nothing else.
        !self.shift.over.load(Ordering::Relaxed)
    }

    /// The thread's work is done: the memory in use is looked at before this returns.
    pub(crate) fn done(&self) {
        self.meet();
        self.meet();
    }

    fn meet(&self) {
        self.attended.set(self.attended.get() + 1);
        self.shift.gate.wait();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        while self.attended.get() < MEETINGS {
            self.meet();
        }
    }
}

/// What the threads found, and what the leader saw before and after.
#[derive(Debug)]
pub(crate) struct Found<T, S> {
    /// One for each thread, in order.
    pub(crate) threads: Vec<T>,
    /// When the threads were ready.
    pub(crate) before: S,
    /// When they were done.
    pub(crate) after: S,
}

/// Runs `work` on `threads` threads for `time`; `look` is called while nobody works.
///
/// # Errors
/// [`Failed`] if a thread panicked, or could not be started.
pub(crate) fn run<T: Send, S>(
    threads: u32,
    time: Duration,
    work: impl Fn(&Place<'_>) -> T + Sync,
    look: impl Fn() -> S,
) -> Result<Found<T, S>, Failed> {
    let cores = cores();
    let crowded = threads as usize > cores.len();
    let shift = Shift { gate: Barrier::new(threads as usize + 1), over: AtomicBool::new(false) };
    let (shift, work) = (&shift, &work);
    thread::scope(|scope| {
        let works = (0..threads as usize).map(|index| {
            let core = cores.get(index % cores.len().max(1)).copied();
            move || {
                let place = Place { shift, attended: Cell::new(0), index, crowded };
                bind(core);
                work(&place)
            }
        });
        let running = start(scope, works).map_err(Failed::NoThread)?.go();
        shift.gate.wait();
        let before = look();
        shift.gate.wait();
        shift.gate.wait();
        thread::sleep(time);
        // Relaxed: see `goes_on`.
        shift.over.store(true, Ordering::Relaxed);
        shift.gate.wait();
        let after = look();
        shift.gate.wait();
        let threads =
            running.into_iter().map(|thread| thread.join().ok().flatten().ok_or(Failed::Panicked));
        Ok(Found { threads: threads.collect::<Result<_, _>>()?, before, after })
    })
}

/// The processors that this process may use; none if they are not told.
pub(crate) fn cores() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect()
}

/// Binds this thread to `core`. Where that is not allowed the threads run where they run.
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
    fn all_work_between_the_looks_and_for_the_whole_time() {
        let at_work = AtomicU32::new(0);
        let look = || at_work.load(Ordering::SeqCst);
        let work = |place: &Place<'_>| {
            place.ready();
            at_work.fetch_add(1, Ordering::SeqCst);
            place.start();
            while place.goes_on() {
                thread::yield_now();
            }
            place.done();
            at_work.fetch_sub(1, Ordering::SeqCst);
            place.index
        };
        let time = Duration::from_millis(20);
        let start = Instant::now();
        let found = run(3, time, work, look).unwrap();
        assert!(start.elapsed() >= time);
        assert_eq!((found.before, found.after), (0, 3));
        assert_eq!(found.threads, [0, 1, 2]);
    }

    #[test]
    fn nobody_waits_for_a_thread_that_panics() {
        let work = |place: &Place<'_>| {
            place.ready();
            assert_ne!(place.index, 1, "one of them panics");
            place.start();
            place.done();
        };
        assert_eq!(run(2, Duration::ZERO, work, || ()).unwrap_err(), Failed::Panicked);
    }
}

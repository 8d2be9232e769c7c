//! *Thread team*: threads that work together, in one run after another.
//!
//! No thread begins a run before all are ready: a measured run contains work and no thread
//! start-up. Runs can be short, some hundred microseconds, so the threads stay alive between two
//! runs and wait actively. A sleeping thread would be woken on the core of the thread that wakes
//! it, and both would share that core for the first milliseconds, which is the whole of a short
//! run. Threads that are no longer needed exit before long work begins.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::clock::{now, seconds};
use crate::sys;
use crate::trace::TraceContext;

/// The longest wait for newly started threads.
const START_TIMEOUT: Duration = Duration::from_millis(20);
/// The largest number of threads in a team: a command holds thread numbers in 16 bits.
const MAX_THREADS: usize = 1 << 15;

/// The machine on which a team works: its clock, and calls that announce the team's threads to it.
pub(crate) trait TeamHost: Sync {
    /// Returns the time since an arbitrary start.
    fn now(&self) -> Duration;

    /// Announces that the calling thread is about to work in a team of `threads` threads, itself
    /// included. Not called for a single thread, and neither are the other two.
    fn gather(&self, _threads: usize) {}

    /// Starts the work of the calling thread, which has this number in its team.
    fn enter(&self, _number: usize) {}

    /// Ends the work of the calling thread.
    fn leave(&self) {}
}

/// The machine this process runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RealTime;

impl TeamHost for RealTime {
    fn now(&self) -> Duration {
        now()
    }
}

/// The result of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TeamRun {
    /// The number of threads that worked.
    pub(crate) threads: usize,
    /// The time when all were ready, by the clock of the host.
    pub(crate) began: Duration,
    /// The seconds from then until all had finished.
    pub(crate) seconds: f64,
}

/// The state that all threads of a team share. Threads are numbered from 0, which is the leader.
struct TeamState<'a> {
    host: &'a dyn TeamHost,
    /// Called with the number of the thread and the number of working threads.
    work: &'a (dyn Fn(usize, usize) + Sync),
    /// The current [`Command`] in one word: a helper that reads it late must not mix two commands.
    command: AtomicU64,
    /// Helpers that have not finished the current run.
    busy: AtomicUsize,
    /// Helpers that have started and wait for commands.
    arrived: AtomicUsize,
    /// The leader's tracing span: the work of the helpers belongs to it.
    trace: TraceContext,
}

/// What the helpers do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Command {
    /// Counts the commands, so that two equal commands differ.
    number: u32,
    /// Threads numbered below this stay; the others exit.
    stay: u16,
    /// Threads numbered below this work.
    workers: u16,
}

impl Command {
    fn packed(self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.stay) << 16 | u64::from(self.workers)
    }

    fn of(packed: u64) -> Command {
        Command {
            number: (packed >> 32) as u32,
            stay: (packed >> 16) as u16,
            workers: packed as u16,
        }
    }
}

/// A team of threads led by the calling thread.
pub(crate) struct ThreadTeam<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    name: &'env str,
    state: &'env TeamState<'env>,
    helpers: Vec<ScopedJoinHandle<'scope, ()>>,
}

/// Makes a team on `host` and calls `lead` with it. The team's threads are called `name` and do
/// `work` in each run; `work` receives the number of the thread, from 0, and the number of threads
/// in this run. All threads have ended when this returns.
///
/// # Panics
/// Resumes a panic of `work` in the calling thread.
pub(crate) fn with_team<R>(
    name: &str,
    host: &dyn TeamHost,
    work: &(dyn Fn(usize, usize) + Sync),
    lead: impl FnOnce(&mut ThreadTeam<'_, '_>) -> R,
) -> R {
    let (command, busy, arrived) = (AtomicU64::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let state = TeamState { host, work, command, busy, arrived, trace: TraceContext::now() };
    thread::scope(|scope| lead(&mut ThreadTeam { scope, name, state: &state, helpers: Vec::new() }))
}

impl ThreadTeam<'_, '_> {
    /// Lets `threads` threads work, the leader included, or fewer if no more can be started.
    pub(crate) fn run(&mut self, threads: usize) -> TeamRun {
        self.grow(threads.min(MAX_THREADS));
        let threads = threads.min(self.helpers.len() + 1).max(1);
        let host = self.state.host;
        let began = host.now();
        if threads > 1 {
            host.gather(threads);
            // Relaxed: the command publishes it.
            self.state.busy.store(threads - 1, Ordering::Relaxed);
            self.publish(u16::MAX, threads as u16);
        }
        // Waits for the helpers when dropped, also when a panic unwinds through here.
        let all_done = WaitForHelpers(&self.state.busy);
        self.state.take_part(0, threads);
        drop(all_done);
        TeamRun { threads, began, seconds: seconds(host.now().saturating_sub(began)) }
    }

    /// Ends all threads numbered `threads` or above.
    pub(crate) fn shrink(&mut self, threads: usize) {
        let threads = threads.max(1);
        if self.helpers.len() < threads {
            return;
        }
        self.publish(threads as u16, 0);
        let ended = self.helpers.drain(threads - 1..);
        let panics: Vec<_> = ended.filter_map(|helper| helper.join().err()).collect();
        if let Some(panic) = panics.into_iter().next()
            && !thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }

    fn publish(&self, stay: u16, workers: u16) {
        // Relaxed: only this thread changes it.
        let last = Command::of(self.state.command.load(Ordering::Relaxed));
        let command = Command { number: last.number.wrapping_add(1), stay, workers };
        // Release pairs with the Acquire in `help`: helpers see everything that preceded the
        // command.
        self.state.command.store(command.packed(), Ordering::Release);
    }

    /// Starts helpers until there are `threads` threads or no more can be started, and waits until
    /// they are ready.
    fn grow(&mut self, threads: usize) {
        if threads <= self.helpers.len() + 1 {
            return;
        }
        // Relaxed: only this thread changes it.
        let (state, seen) = (self.state, self.state.command.load(Ordering::Relaxed));
        // Relaxed: a count; it publishes nothing.
        let before = state.arrived.load(Ordering::Relaxed);
        let mut more = 0;
        while self.helpers.len() + 1 < threads {
            let number = self.helpers.len() + 1;
            match sys::spawn_scoped(self.scope, self.name, move || state.help(number, seen)) {
                Ok(helper) => self.helpers.push(helper),
                // Fewer threads also do the work.
                Err(_) => break,
            }
            more += 1;
        }
        let start = Instant::now();
        // Relaxed: a count; it publishes nothing.
        while state.arrived.load(Ordering::Relaxed) < before + more
            && start.elapsed() < START_TIMEOUT
        {
            thread::yield_now();
        }
    }
}

impl Drop for ThreadTeam<'_, '_> {
    fn drop(&mut self) {
        self.shrink(1);
    }
}

impl TeamState<'_> {
    /// Runs a helper: follows the commands after `seen` until one of them ends this thread.
    fn help(&self, number: usize, mut seen: u64) {
        // Relaxed: a count; it publishes nothing.
        self.arrived.fetch_add(1, Ordering::Relaxed);
        loop {
            // Acquire pairs with the Release in `publish`.
            let packed = self.command.load(Ordering::Acquire);
            if packed == seen {
                thread::yield_now();
                continue;
            }
            seen = packed;
            let command = Command::of(packed);
            if number >= command.stay.into() {
                return;
            }
            if number < command.workers.into() {
                let _done = HelperDone(&self.busy);
                self.trace.run(|| self.take_part(number, command.workers.into()));
            }
        }
    }

    /// Does the work of one thread of a run.
    fn take_part(&self, number: usize, threads: usize) {
        let _entered = (threads > 1).then(|| EnteredThread::enter(self.host, number));
        (self.work)(number, threads);
    }
}

/// A thread at work. It leaves even if it panics: the others wait for it.
struct EnteredThread<'a>(&'a dyn TeamHost);

impl<'a> EnteredThread<'a> {
    fn enter(host: &'a dyn TeamHost, number: usize) -> EnteredThread<'a> {
        host.enter(number);
        EnteredThread(host)
    }
}

impl Drop for EnteredThread<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Waits for the helpers of a run when dropped.
struct WaitForHelpers<'a>(&'a AtomicUsize);

impl Drop for WaitForHelpers<'_> {
    fn drop(&mut self) {
        // Acquire pairs with the Release in `HelperDone`: the leader sees what the helpers did.
        while self.0.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        }
    }
}

/// Counts a helper as finished when dropped, also on a panic.
struct HelperDone<'a>(&'a AtomicUsize);

impl Drop for HelperDone<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `WaitForHelpers`: the leader sees what the helper did.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;
    use std::thread::ThreadId;

    use super::*;

    #[test]
    fn commands_fit_into_a_word() {
        for command in [
            Command { number: 0, stay: 0, workers: 0 },
            Command { number: u32::MAX, stay: 1, workers: 2 },
            Command { number: 7, stay: u16::MAX, workers: u16::MAX },
        ] {
            assert_eq!(Command::of(command.packed()), command);
        }
    }

    #[test]
    fn each_run_has_the_requested_number_of_threads() {
        let present: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());
        let work =
            |_, _| present.lock().expect("no thread panics here").push(thread::current().id());
        with_team("test", &RealTime, &work, |team| {
            for round in 0..200 {
                let threads = [1, 4, 2, 3, 4, 1][round % 6];
                assert_eq!(team.run(threads).threads, threads);
                let mut all = std::mem::take(&mut *present.lock().expect("no thread panics here"));
                all.sort_unstable_by_key(|id| format!("{id:?}"));
                all.dedup();
                assert_eq!(all.len(), threads, "each of them once");
                if round % 50 == 49 {
                    team.shrink(round % 3);
                }
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_leader_and_no_thread_remains() {
        let leader = thread::current().id();
        for leader_panics in [true, false] {
            let work = |_, _| {
                assert_ne!(
                    thread::current().id() == leader,
                    leader_panics,
                    "this thread was to panic"
                )
            };
            let result = catch_unwind(AssertUnwindSafe(|| {
                with_team("test", &RealTime, &work, |team| team.run(4))
            }));
            assert!(result.is_err());
        }
    }
}

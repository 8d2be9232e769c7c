//! *Crew*: threads that begin together, work, and end together.
//!
//! None begins before all have been started: what is measured is work, and not how long starting a thread takes. They wait awake,
//! for some microseconds: a thread that sleeps is woken on the core of the one that wakes it, and both then share that core for the
//! first milliseconds, which is all of a short slice of work.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::sys;

/// How long threads that have been started are waited for.
const PATIENCE: Duration = Duration::from_millis(20);

/// Runs `work` on so many threads, this one among them, or on fewer if they cannot be had, and returns on how many. `begin` is
/// called with that number on this thread when all the others have been started, before any of them works; `work` is told which
/// of how many threads it is on, from 0, which is this one.
///
/// # Panics
/// A panic in `work` is passed on when all have ended.
pub(crate) fn together(
    threads: usize,
    name: &str,
    begin: impl FnOnce(usize),
    work: impl Fn(usize, usize) + Sync,
) -> usize {
    let gate = Gate::default();
    thread::scope(|scope| {
        let mut helpers = Vec::new();
        for number in 1..threads {
            let (gate, work) = (&gate, &work);
            match sys::spawn_scoped(scope, name, move || work(number, gate.wait())) {
                Ok(helper) => helpers.push(helper),
                // Fewer hands do it too.
                Err(_) => break,
            }
        }
        let threads = helpers.len() + 1;
        gate.open(threads, || begin(threads));
        work(0, threads);
        let panics: Vec<_> = helpers.into_iter().filter_map(|helper| helper.join().err()).collect();
        if let Some(panic) = panics.into_iter().next() {
            std::panic::resume_unwind(panic);
        }
        threads
    })
}

/// Where threads wait until all have come.
#[derive(Default)]
struct Gate {
    /// Threads that wait.
    arrived: AtomicUsize,
    /// How many threads there are, once it is open; 0 before.
    threads: AtomicUsize,
}

impl Gate {
    fn wait(&self) -> usize {
        // Relaxed: a head count; nothing is passed on.
        self.arrived.fetch_add(1, Ordering::Relaxed);
        loop {
            // Acquire pairs with the Release in `open`: what `begin` did is seen.
            match self.threads.load(Ordering::Acquire) {
                0 => thread::yield_now(),
                threads => return threads,
            }
        }
    }

    /// Lets `threads` go, this one among them, when all are there, or after a while.
    fn open(&self, threads: usize, begin: impl FnOnce()) {
        let start = Instant::now();
        // Relaxed: see `wait`.
        while self.arrived.load(Ordering::Relaxed) + 1 < threads && start.elapsed() < PATIENCE {
            thread::yield_now();
        }
        begin();
        // Release pairs with the Acquire in `wait`.
        self.threads.store(threads, Ordering::Release);
    }
}

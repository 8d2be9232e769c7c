//! Threads that run one loop side by side.
//!
//! The loop measures contention, so the threads must run at the same time. On a busy machine, short
//! loops easily run one after the other on one processor. Three things keep the threads together:
//! each thread is bound to its own processor while there are enough of them; the threads spin, not
//! sleep, until all have arrived; and a turn is repeated, up to five times in all, if its first
//! thread ended before the last had done most of its work.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use crate::bench::arena::ArenaMeasureError;
use crate::bench::team::{Results, TeamError, Work, bind, cores, joined, start};

/// Attempts at a turn, the first included.
const TRIES: u32 = 5;
/// The share of a turn, from the first start to the last end, during which all threads must be
/// running.
const MIN_OVERLAP: f64 = 0.7;

/// The result of one thread and the time it ran.
struct ThreadRun<T> {
    result: T,
    start: Instant,
    end: Instant,
}

/// Runs `work` on `threads` threads at once, with a fresh `subject`; returns each thread's result.
pub(super) fn run<S: Sync, T: Send>(
    threads: u32,
    subject: impl Fn() -> Result<S, ArenaMeasureError>,
    work: impl Fn(&S) -> T + Sync,
) -> Result<Vec<T>, ArenaMeasureError> {
    let cores = cores();
    for _ in 1..TRIES {
        let runs = turn(threads, &cores, &subject()?, &work)?;
        // Threads that share a processor take turns in any case.
        if threads as usize > cores.len() || overlapped(&runs) {
            return Ok(results(runs));
        }
    }
    turn(threads, &cores, &subject()?, &work).map(results)
}

fn results<T>(runs: Vec<ThreadRun<T>>) -> Vec<T> {
    runs.into_iter().map(|run| run.result).collect()
}

fn turn<S: Sync, T: Send>(
    threads: u32,
    cores: &[usize],
    subject: &S,
    work: &(impl Fn(&S) -> T + Sync),
) -> Result<Vec<ThreadRun<T>>, ArenaMeasureError> {
    let results = Results::new(threads);
    turn_threads(threads, cores, &|index| {
        let start = Instant::now();
        let result = work(subject);
        results.store(index, ThreadRun { result, start, end: Instant::now() });
    })?;
    Ok(results.all()?)
}

/// Runs `work`, which takes the thread's number, on all threads at once.
fn turn_threads(
    threads: u32,
    cores: &[usize],
    work: &(dyn Fn(usize) + Sync),
) -> Result<(), TeamError> {
    let waiting = AtomicU32::new(threads);
    let oversubscribed = threads as usize > cores.len();
    let waiting = &waiting;
    let work_of = |index: usize| -> Work<'_> {
        let core = cores.get(index % cores.len().max(1)).copied();
        Box::new(move || {
            bind(core);
            // AcqRel and Acquire pair with each other: no thread reads its clock before all threads
            // have arrived.
            waiting.fetch_sub(1, Ordering::AcqRel);
            while waiting.load(Ordering::Acquire) > 0 {
                if oversubscribed { thread::yield_now() } else { spin_loop() }
            }
            work(index);
        })
    };
    thread::scope(|scope| joined(start(scope, (0..threads as usize).map(work_of).collect())?.go()))
}

/// Returns whether all threads ran at the same time for most of the turn.
fn overlapped<T>(runs: &[ThreadRun<T>]) -> bool {
    let starts = || runs.iter().map(|run| run.start);
    let ends = || runs.iter().map(|run| run.end);
    let (Some(first), Some(last)) = (starts().min(), ends().max()) else { return true };
    let (Some(all_started), Some(one_ended)) = (starts().max(), ends().min()) else { return true };
    let shared = one_ended.saturating_duration_since(all_started).as_secs_f64();
    shared >= MIN_OVERLAP * (last - first).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Duration;

    #[test]
    fn every_thread_works_on_the_same_subject() {
        let seen = run(3, || Ok(Mutex::new(0)), |count| *count.lock().unwrap() += 1).unwrap();
        assert_eq!(seen.len(), 3);
        let failed = run(2, || Err::<(), _>(ArenaMeasureError::Team(TeamError::Panicked)), |()| ());
        assert_eq!(failed.unwrap_err(), ArenaMeasureError::Team(TeamError::Panicked));
    }

    #[test]
    fn runs_one_after_the_other_do_not_overlap() {
        let zero = Instant::now();
        let at = |start, end| {
            let after = |ms| zero + Duration::from_millis(ms);
            ThreadRun { result: (), start: after(start), end: after(end) }
        };
        assert!(overlapped(&[at(0, 10), at(1, 9)]));
        assert!(!overlapped(&[at(0, 10), at(5, 14)]));
        assert!(!overlapped(&[at(0, 10), at(11, 20)]));
        assert!(overlapped::<()>(&[]));
    }
}

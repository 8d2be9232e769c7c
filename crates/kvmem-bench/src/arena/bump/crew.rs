//! *Crew*: threads that run one loop side by side.
//!
//! Contention is what is measured, so the threads must run at the same time, and short loops on a
//! machine with other work easily run one after the other, all on one processor. Three things keep
//! them together: each thread is bound to a processor of its own as far as there are enough; they
//! wait for each other spinning, not asleep; and a turn in which the first was over before the last
//! had done most of its work is repeated, a few times at most.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use crate::arena::MeasureError;
use crate::crew::{bind, cores, start};

/// How often a turn is tried in all.
const TRIES: u32 = 5;
/// The share of a turn's time, from the first start to the last end, in which all threads were at
/// work.
const TOGETHER: f64 = 0.7;

/// What one thread did, and when.
struct Shift<T> {
    found: T,
    start: Instant,
    end: Instant,
}

/// Runs `work` with a fresh `subject` on `threads` threads at once, and returns what each found.
pub(super) fn run<S: Sync, T: Send>(
    threads: u32,
    subject: impl Fn() -> Result<S, MeasureError>,
    work: impl Fn(&S) -> T + Sync,
) -> Result<Vec<T>, MeasureError> {
    let cores = cores();
    for _ in 1..TRIES {
        let shifts = turn(threads, &cores, &subject()?, &work)?;
        // Where threads share a processor they take turns whatever one does.
        if threads as usize > cores.len() || together(&shifts) {
            return Ok(found(shifts));
        }
    }
    turn(threads, &cores, &subject()?, &work).map(found)
}

fn found<T>(shifts: Vec<Shift<T>>) -> Vec<T> {
    shifts.into_iter().map(|shift| shift.found).collect()
}

fn turn<S: Sync, T: Send>(
    threads: u32,
    cores: &[usize],
    subject: &S,
    work: &(impl Fn(&S) -> T + Sync),
) -> Result<Vec<Shift<T>>, MeasureError> {
    let waiting = AtomicU32::new(threads);
    let crowded = threads as usize > cores.len();
    let waiting = &waiting;
    let shift = |core: Option<&usize>| {
        let core = core.copied();
        move || {
            bind(core);
            // AcqRel and Acquire: pair with each other, so that nobody's clock starts before
            // everybody is here.
            waiting.fetch_sub(1, Ordering::AcqRel);
            while waiting.load(Ordering::Acquire) > 0 {
                if crowded { thread::yield_now() } else { spin_loop() }
            }
            let start = Instant::now();
            let found = work(subject);
            Shift { found, start, end: Instant::now() }
        }
    };
    thread::scope(|scope| {
        let works = (0..threads as usize).map(|i| shift(cores.get(i % cores.len().max(1))));
        let running = start(scope, works)?.go();
        let ended = running.into_iter().map(|thread| thread.join().ok().flatten());
        ended.map(|shift| shift.ok_or(MeasureError::Panicked)).collect()
    })
}

/// Whether the threads were all at work most of the time.
fn together<T>(shifts: &[Shift<T>]) -> bool {
    let starts = || shifts.iter().map(|shift| shift.start);
    let ends = || shifts.iter().map(|shift| shift.end);
    let (Some(first), Some(last)) = (starts().min(), ends().max()) else { return true };
    let (Some(all_started), Some(one_ended)) = (starts().max(), ends().min()) else { return true };
    let shared = one_ended.saturating_duration_since(all_started).as_secs_f64();
    shared >= TOGETHER * (last - first).as_secs_f64()
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
        let refused = run(2, || Err::<(), _>(MeasureError::NotAble), |()| ());
        assert_eq!(refused.unwrap_err(), MeasureError::NotAble);
    }

    #[test]
    fn work_one_after_the_other_is_not_together() {
        let zero = Instant::now();
        let at = |start, end| {
            let after = |ms| zero + Duration::from_millis(ms);
            Shift { found: (), start: after(start), end: after(end) }
        };
        assert!(together(&[at(0, 10), at(1, 9)]));
        assert!(!together(&[at(0, 10), at(5, 14)]));
        assert!(!together(&[at(0, 10), at(11, 20)]));
        assert!(together::<()>(&[]));
    }
}

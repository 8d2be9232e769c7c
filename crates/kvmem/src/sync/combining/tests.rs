//! The lock and its slots, with the threads of one processor.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::mutex::{LASTING, PERIOD, WAITS};
use super::*;

/// Numbers in the order in which they were added.
#[derive(Default)]
struct Log(Vec<u64>);

impl Combined for Log {
    fn note(&mut self, [number, _]: Words) {
        assert_ne!(number, PANICS, "a defect of the data");
        self.0.push(number);
    }

    fn request(&mut self, words: Words) -> Words {
        self.note(words);
        [words[0] * 2, self.0.len() as u64]
    }
}

const PANICS: u64 = u64::MAX;

/// Returns a lock whose slots are open, and whose owner is no processor.
fn open() -> CombiningMutex<Log> {
    let lock = CombiningMutex::new(Log::default());
    lock.lock().open();
    lock.disown();
    lock
}

fn ended(mut guard: CombiningGuard<'_, Log>) -> Vec<u64> {
    guard.serve();
    guard.0.clone()
}

/// Threads that sleep wait seldom, and long: four naps are as much as 64 waits, within 4 ms.
#[test]
fn naps_are_contention_that_lasts() {
    let lock = CombiningMutex::new(Log::default());
    let mut guard = lock.lock();
    guard.nap(3);
    assert!(!guard.has_lasted());
    guard.nap(1);
    let period = |_: &u32| {
        thread::sleep(Duration::from_millis(1));
        let lasts = guard.has_lasted();
        guard.nap(4);
        lasts
    };
    // Nothing is known about the time of the first period, and a busy machine may make others long.
    assert!((0..1000).find(period).is_some_and(|periods| periods >= LASTING));
}

#[test]
fn waits_open_the_slots() {
    let lock = CombiningMutex::new(Log::default());
    for wait in 1..=WAITS {
        let barrier = Barrier::new(2);
        let guard = lock.lock();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                barrier.wait();
                lock.lock().is_contended()
            });
            barrier.wait();
            thread::sleep(Duration::from_millis(2));
            drop(guard);
            assert_eq!(waiter.join().unwrap(), wait == WAITS, "after {wait} waits");
        });
    }
}

#[test]
fn slots_of_no_use_are_closed() {
    let lock = open();
    let mut published = false;
    for _ in 0..PERIOD {
        assert!(lock.is_open() && lock.try_lock_closed().is_none());
        lock.lock().finish(|_| published = true);
    }
    assert!(published && !lock.is_open());
    assert!(lock.try_lock_closed().is_some());
    assert!(!lock.note([1, 0]), "closed slots take no note");
    assert!(matches!(lock.request([1, 0]), Err(None)));
}

#[test]
fn a_busy_lock_is_closed_entry_by_entry() {
    let lock = open();
    assert!(lock.note([1, 0]));
    let mut guard = lock.lock();
    assert!(guard.close_soon(|_| ()) && !guard.is_open());
    assert_eq!(guard.0, [1]);
}

#[test]
fn the_owner_takes_the_lock() {
    let lock = CombiningMutex::new(Log::default());
    assert!(!lock.note([1, 0]));
    // Unless the system moves this thread to another processor meanwhile.
    let notes = (0..100).filter(|_| {
        lock.lock().close(|_| ());
        lock.lock().open();
        lock.note([1, 0])
    });
    assert!(notes.count() < 50);
}

#[test]
fn notes_are_run_by_the_next_holder() {
    let lock = open();
    let left = (0..100).take_while(|number| lock.note([*number, 0])).count() as u64;
    assert!((2..100).contains(&left), "{left}");
    let mut served = ended(lock.lock());
    served.sort_unstable();
    assert_eq!(served, (0..left).collect::<Vec<_>>());
    assert!(lock.note([100, 0]), "the entries are free again");
    lock.lock().close(|log| assert_eq!(log.0.last(), Some(&100)));
    assert!(!lock.is_open());
}

#[test]
fn a_holder_answers_requests() {
    let (lock, started, stop) = (open(), Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            started.wait();
            while !stop.load(Ordering::Relaxed) {
                let mut guard = lock.lock();
                if guard.is_open() {
                    guard.serve();
                    // Held nearly all the time, so that no other thread takes the lock.
                    thread::sleep(Duration::from_micros(200));
                    guard.serve();
                }
            }
        });
        started.wait();
        let answered = (1..=200).filter(|number| {
            // A thread that takes the lock instead makes its processor the owner.
            lock.disown();
            thread::sleep(Duration::from_micros(50));
            lock.request([*number, 0]).is_ok_and(|[answer, _]| answer == *number * 2)
        });
        let answered = answered.count();
        stop.store(true, Ordering::Relaxed);
        assert!(answered > 20, "{answered}");
    });
}

#[test]
fn a_thread_that_nobody_serves_takes_the_lock() {
    let lock = open();
    assert!(lock.note([1, 0]));
    let Err(Some(guard)) = lock.request([2, 0]) else { panic!("no thread holds the lock") };
    assert_eq!(guard.0, [1], "everything else was served, and the request withdrawn");
    drop(guard);
    assert_eq!(ended(lock.lock()), [1]);
}

#[test]
fn a_child_of_a_fork_runs_notes_and_drops_requests() {
    let lock = open();
    assert!(lock.note([1, 0]));
    lock.publish_without_waiting([2, 0]);
    lock.hold_over_fork();
    assert!(lock.try_lock_closed().is_none());
    lock.release_over_fork();
    lock.forget_waiters();
    lock.release_over_fork();
    let mut guard = lock.lock();
    assert!(guard.is_open());
    guard.close(|_| ());
    assert_eq!(guard.0, [1]);
}

/// A panic under the lock is a defect of the data. It does not keep other threads waiting.
#[test]
fn a_panic_releases_the_lock() {
    let lock = open();
    assert!(lock.note([PANICS, 0]));
    let panics = thread::scope(|scope| scope.spawn(|| lock.lock().serve()).join().is_err());
    assert!(panics);
    lock.publish_without_waiting([PANICS, 0]);
    assert!(lock.note([3, 0]));
    let panics = thread::scope(|scope| scope.spawn(|| lock.lock().serve()).join().is_err());
    assert!(panics);
    assert_eq!(ended(lock.lock()), [3], "neither is run again");
}

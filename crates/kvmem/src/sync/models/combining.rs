//! The combining mutex: what is published is run once, before the operations that it happened
//! before, whether slots are opened, closed or served meanwhile.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::preemptions::check;
use crate::sync::{Combined, CombiningGuard, CombiningMutex, Words};

/// Preemptions of an order.
const PREEMPTIONS: usize = 3;

/// A sum, and how many numbers were added.
struct Sum {
    sum: u64,
    added: u64,
}

impl Combined for Sum {
    fn note(&mut self, [number, _]: Words) {
        self.sum += number;
        self.added += 1;
    }

    fn request(&mut self, words: Words) -> Words {
        self.note(words);
        [self.sum, self.added]
    }
}

struct Shared(CombiningMutex<Sum>);

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Shared(CombiningMutex::new(Sum { sum: 0, added: 0 })))
    }

    fn open() -> Arc<Self> {
        let shared = Self::new();
        shared.0.lock().open();
        shared
    }

    /// Takes the lock, with everything served.
    fn enter(&self) -> CombiningGuard<'_, Sum> {
        let mut guard = self.0.lock();
        if guard.is_open() {
            guard.serve();
        } else if guard.is_contended() {
            guard.open();
        }
        guard
    }

    fn leave(&self, guard: CombiningGuard<'_, Sum>) {
        if guard.is_open() {
            guard.finish(|_| ());
        }
    }

    fn add(&self, number: u64) -> Words {
        if let Some(mut sum) = self.0.try_lock_closed() {
            return sum.request([number, 0]);
        }
        match self.0.request([number, 0]) {
            Ok(answer) => answer,
            Err(guard) => {
                let mut guard = guard.unwrap_or_else(|| self.enter());
                let answer = guard.request([number, 0]);
                self.leave(guard);
                answer
            }
        }
    }

    /// Adds a number, at once or later.
    fn note(&self, number: u64) {
        if !self.0.note([number, 0]) {
            self.add(number);
        }
    }

    fn sum(&self) -> Words {
        let guard = self.enter();
        let words = [guard.sum, guard.added];
        self.leave(guard);
        words
    }
}

fn spawn(shared: &Arc<Shared>, work: impl FnOnce(&Shared) + 'static) -> thread::JoinHandle<()> {
    let shared = shared.clone();
    thread::spawn(move || work(&shared))
}

#[test]
fn a_note_that_happened_before_is_run() {
    check(PREEMPTIONS, || {
        let shared = Shared::open();
        let noted = Arc::new(AtomicUsize::new(0));
        let noting = {
            let noted = noted.clone();
            spawn(&shared, move |shared| {
                shared.note(5);
                noted.store(1, Ordering::Release);
            })
        };
        let before = noted.load(Ordering::Acquire) == 1;
        let sum = shared.sum();
        assert!(sum == [5, 1] || !before && sum == [0, 0], "{sum:?}");
        noting.join().unwrap();
        assert_eq!(shared.sum(), [5, 1]);
    });
}

/// The one note of the slot is in use, so its thread waits; a holder serves it or leaves.
#[test]
fn notes_and_requests_are_run_once() {
    check(PREEMPTIONS, || {
        let shared = Shared::open();
        let other = spawn(&shared, |shared| {
            shared.note(1);
            let [sum, _] = shared.add(2);
            assert!(sum == 3 || sum == 13, "its own note comes first: {sum}");
        });
        let [sum, _] = shared.add(10);
        assert!([10, 11, 13].contains(&sum), "{sum}");
        other.join().unwrap();
        assert_eq!(shared.sum(), [13, 3]);
    });
}

/// A thread that meets a closing publishes before it, and is served, or takes the lock after it.
#[test]
fn closing_leaves_nothing_behind() {
    check(PREEMPTIONS, || {
        let shared = Shared::open();
        let other = spawn(&shared, |shared| shared.note(1));
        let mut guard = shared.enter();
        guard.close(|_| ());
        assert!(!guard.is_open());
        drop(guard);
        other.join().unwrap();
        // It may have waited for the lock, and have opened the slots again.
        assert_eq!(shared.sum(), [1, 1]);
    });
}

/// A closing that may be given up leaves the slots open or closed, and loses nothing.
#[test]
fn closing_soon_leaves_nothing_behind() {
    check(PREEMPTIONS, || {
        let shared = Shared::open();
        let other = spawn(&shared, |shared| shared.note(1));
        let mut guard = shared.enter();
        let is_closed = guard.close_soon(|_| ());
        assert_eq!(guard.is_open(), !is_closed);
        shared.leave(guard);
        other.join().unwrap();
        assert_eq!(shared.sum(), [1, 1]);
    });
}

/// What a holder stored before it closed the slots is seen by a thread that finds them closed and
/// knows of a note.
#[test]
fn a_thread_that_finds_the_slots_closed_sees_what_was_published() {
    check(PREEMPTIONS, || {
        let shared = Shared::open();
        let published = Arc::new(AtomicUsize::new(0));
        assert!(shared.0.note([7, 0]), "the slots are open");
        let closing = {
            let published = published.clone();
            spawn(&shared, move |shared| {
                let mut guard = shared.enter();
                guard.close(|sum| published.store(sum.sum as usize, Ordering::Relaxed));
            })
        };
        if !shared.0.is_open() {
            assert_eq!(published.load(Ordering::Relaxed), 7);
        }
        closing.join().unwrap();
    });
}

/// From the plain lock to open slots and back.
#[test]
fn waits_open_the_slots() {
    check(2, || {
        let shared = Shared::new();
        let other = spawn(&shared, |shared| {
            shared.add(1);
            shared.note(2);
        });
        shared.note(4);
        shared.add(8);
        other.join().unwrap();
        assert_eq!(shared.sum(), [15, 4]);
    });
}

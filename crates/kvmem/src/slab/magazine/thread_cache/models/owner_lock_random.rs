//! The owner lock with more stoppers than loom can check all orders of.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use shuttle::sync::Arc;
use shuttle::thread;

use super::guarded_owner::GuardedOwner;
use crate::sync::models::random::check;

struct Guarded {
    owner: GuardedOwner,
    // The standard atomics: they cause no change of thread.
    inside: AtomicBool,
    entered: AtomicU32,
}

impl Guarded {
    fn alone(&self) {
        assert!(!self.inside.swap(true, Ordering::Relaxed), "another thread is inside");
        thread::yield_now();
        self.inside.store(false, Ordering::Relaxed);
        self.entered.fetch_add(1, Ordering::Relaxed);
    }
}

fn owner_and_stoppers(fenced: bool, reached: [bool; 3]) {
    check(move || {
        let guarded = Arc::new(Guarded {
            owner: GuardedOwner::new(fenced),
            inside: AtomicBool::new(false),
            entered: AtomicU32::new(0),
        });
        let stoppers = reached.map(|reached| {
            let guarded = guarded.clone();
            thread::spawn(move || {
                let stop = || u32::from(guarded.owner.stop(reached, || guarded.alone()));
                stop() + stop()
            })
        });
        for _ in 0..6 {
            guarded.owner.enter(|| guarded.alone());
        }
        let stopped: u32 = stoppers.into_iter().map(|stopper| stopper.join().unwrap()).sum();
        assert_eq!(guarded.entered.load(Ordering::Relaxed), 6 + stopped);
        assert!(!(fenced || reached == [true; 3]) || stopped == 6);
    });
}

#[test]
fn barriers() {
    owner_and_stoppers(false, [true; 3]);
}

#[test]
fn an_owner_with_fences() {
    owner_and_stoppers(true, [false; 3]);
}

#[test]
fn barriers_that_start_to_fail() {
    owner_and_stoppers(false, [true, false, false]);
}

//! The owner lock excludes all others.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::guarded_owner::GuardedOwner;
use crate::sync::models::preemptions::check;

/// A number that only the holder of the lock may access.
struct Guarded {
    owner: GuardedOwner,
    number: UnsafeCell<u32>,
}

// SAFETY: `number` is accessed under the lock alone; loom detects it if not.
unsafe impl Sync for Guarded {}
// SAFETY: as for `Sync`.
unsafe impl Send for Guarded {}

impl Guarded {
    fn add(&self) {
        // SAFETY: this thread holds the lock.
        self.number.with_mut(|number| unsafe { *number += 1 });
    }
}

fn owner_and_stoppers(fenced: bool, reached: bool, stoppers: u32) {
    check(2, move || {
        let guarded =
            Arc::new(Guarded { owner: GuardedOwner::new(fenced), number: UnsafeCell::new(0) });
        let others: Vec<_> = (0..stoppers)
            .map(|_| {
                let guarded = guarded.clone();
                thread::spawn(move || u32::from(guarded.owner.stop(reached, || guarded.add())))
            })
            .collect();
        guarded.owner.enter(|| guarded.add());
        guarded.owner.enter(|| guarded.add());
        let stopped: u32 = others.into_iter().map(|other| other.join().unwrap()).sum();
        assert!(!(fenced || reached) || stopped == stoppers);
        guarded.owner.enter(|| {
            // SAFETY: this thread holds the lock.
            assert_eq!(guarded.number.with(|number| unsafe { *number }), 2 + stopped);
        });
    });
}

#[test]
fn an_owner_and_two_trimmers_exclude_each_other() {
    owner_and_stoppers(false, true, 2);
}

#[test]
fn an_owner_with_fences_and_two_trimmers_exclude_each_other() {
    owner_and_stoppers(true, false, 2);
}

#[test]
fn an_owner_excludes_trimmers_when_barriers_start_to_fail() {
    owner_and_stoppers(false, false, 2);
}

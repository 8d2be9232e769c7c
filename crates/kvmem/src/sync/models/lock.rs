//! The lock: one holder at a time, which sees the changes of the last one, and waiters make
//! progress.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::sync::lock::RawLock;

/// A number that only the holder of the lock may access: loom fails if two threads access it
/// without order.
struct Guarded {
    lock: RawLock,
    number: UnsafeCell<u32>,
}

// SAFETY: `number` is accessed under the lock alone, or when no other thread exists; loom detects
// it if not.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Guarded { lock: RawLock::new(), number: UnsafeCell::new(0) })
    }

    fn add_one(&self) {
        self.lock.acquire();
        self.add_and_unlock();
    }

    /// Tries to take the lock and add one; returns whether it did.
    fn try_add_one(&self) -> bool {
        let taken = self.lock.try_acquire();
        if taken {
            self.add_and_unlock();
        }
        taken
    }

    /// Adds one and releases the lock; the caller holds it.
    fn add_and_unlock(&self) {
        // SAFETY: this thread holds the lock.
        self.number.with_mut(|number| unsafe { *number += 1 });
        // SAFETY: this thread holds the lock.
        unsafe { self.lock.release() };
    }

    fn number(&self) -> u32 {
        // SAFETY: called when the other threads have been joined.
        self.number.with(|number| unsafe { *number })
    }
}

fn spawn(guarded: &Arc<Guarded>, times: u32) -> thread::JoinHandle<()> {
    let guarded = guarded.clone();
    thread::spawn(move || (0..times).for_each(|_| guarded.add_one()))
}

#[test]
fn two_waiters_exclude_each_other() {
    loom::model(|| {
        let guarded = Guarded::new();
        let other = spawn(&guarded, 2);
        guarded.add_one();
        guarded.add_one();
        other.join().unwrap();
        assert_eq!(guarded.number(), 4);
    });
}

/// One thread waits while two others only try. Two waiting threads are too much for loom: it may
/// run the two alternately forever, and never the thread that they wait for.
#[test]
fn one_waiter_and_two_tries() {
    loom::model(|| {
        let guarded = Guarded::new();
        let others = [(), ()].map(|()| {
            let guarded = guarded.clone();
            thread::spawn(move || guarded.try_add_one())
        });
        guarded.add_one();
        let added = others.into_iter().map(|other| u32::from(other.join().unwrap())).sum::<u32>();
        assert_eq!(guarded.number(), 1 + added);
    });
}

#[test]
fn a_try_does_not_wait() {
    loom::model(|| {
        let guarded = Guarded::new();
        let other = spawn(&guarded, 1);
        if !guarded.try_add_one() {
            guarded.add_one();
        }
        other.join().unwrap();
        assert_eq!(guarded.number(), 2);
        assert!(guarded.try_add_one(), "no thread holds it");
    });
}

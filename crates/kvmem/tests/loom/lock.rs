//! The lock: one holder at a time, who sees what the last one did; and a waiter gets on.

use kvmem::sync_loom_face::Lock;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A number that only the holder of the lock may touch: loom fails where two do so without order.
struct Guarded {
    lock: Lock,
    number: UnsafeCell<u32>,
}

// SAFETY: `number` is used under the lock alone, or when no other thread is left; loom finds it out
// if not.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Guarded { lock: Lock::new(), number: UnsafeCell::new(0) })
    }

    fn add_one(&self) {
        self.lock.lock();
        self.add_and_unlock();
    }

    /// Whether it got the lock.
    fn try_add_one(&self) -> bool {
        let taken = self.lock.try_lock();
        if taken {
            self.add_and_unlock();
        }
        taken
    }

    /// Of the holder alone.
    fn add_and_unlock(&self) {
        // SAFETY: this thread has the lock.
        self.number.with_mut(|number| unsafe { *number += 1 });
        // SAFETY: as above.
        unsafe { self.lock.unlock() };
    }

    fn number(&self) -> u32 {
        // SAFETY: called when the others have been joined.
        self.number.with(|number| unsafe { *number })
    }
}

fn spawn(guarded: &Arc<Guarded>, times: u32) -> thread::JoinHandle<()> {
    let guarded = guarded.clone();
    thread::spawn(move || (0..times).for_each(|_| guarded.add_one()))
}

#[test]
fn two_take_turns() {
    loom::model(|| {
        let guarded = Guarded::new();
        let other = spawn(&guarded, 2);
        guarded.add_one();
        guarded.add_one();
        other.join().unwrap();
        assert_eq!(guarded.number(), 4);
    });
}

/// One waits while two only try. Two that wait are more than loom can follow: it may run the two in
/// turn for ever, and never the one they wait for.
#[test]
fn three_meet() {
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
fn trying_does_not_wait() {
    loom::model(|| {
        let guarded = Guarded::new();
        let other = spawn(&guarded, 1);
        if !guarded.try_add_one() {
            guarded.add_one();
        }
        other.join().unwrap();
        assert_eq!(guarded.number(), 2);
        assert!(guarded.try_add_one(), "nobody has it");
    });
}

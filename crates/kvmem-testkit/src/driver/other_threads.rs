//! Other threads that free allocations for the driver, which puts the ranges into their caches.

use std::cell::{Cell, RefCell};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// One of this many allocations is freed by a thread that keeps running.
const PERSISTENT_EVERY: u32 = 5;
/// One of this many allocations is freed by a thread that ends right afterwards.
const SHORT_LIVED_EVERY: u32 = 67;

/// The other threads. The persistent one starts with its first allocation and ends when this is
/// dropped.
pub(super) struct OtherThreads<T> {
    frees: Cell<u32>,
    persistent: RefCell<Option<(Sender<T>, Receiver<()>)>>,
}

impl<T> Default for OtherThreads<T> {
    fn default() -> Self {
        OtherThreads { frees: Cell::new(0), persistent: RefCell::new(None) }
    }
}

impl<T: Send + 'static> OtherThreads<T> {
    /// Drops `what` on this thread or another, and returns when it is dropped.
    pub(super) fn free(&self, what: T) {
        let frees = self.frees.get().wrapping_add(1);
        self.frees.set(frees);
        if frees.is_multiple_of(SHORT_LIVED_EVERY) {
            thread::spawn(move || drop(what)).join().expect("a drop does not panic");
        } else if frees.is_multiple_of(PERSISTENT_EVERY) {
            self.hand_over(what);
        } else {
            drop(what);
        }
    }

    fn hand_over(&self, what: T) {
        let mut persistent = self.persistent.borrow_mut();
        let (give, done) = persistent.get_or_insert_with(|| {
            let ((give, take), (say, done)) = (channel::<T>(), channel());
            thread::spawn(move || {
                for what in take {
                    drop(what);
                    if say.send(()).is_err() {
                        break;
                    }
                }
            });
            (give, done)
        });
        give.send(what).ok().and_then(|()| done.recv().ok()).expect("the thread is running");
    }
}

//! *Elsewhere*: other threads that free what the driver gives them, so that it lies in caches of
//! theirs.

use std::cell::{Cell, RefCell};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Of so many allocations one is freed by a thread that lives on, and of so many by one that ends
/// then.
const STAYS: u32 = 5;
const ENDS: u32 = 67;

/// A thread, once there is something for it; it ends with this.
pub(super) struct Elsewhere<T> {
    frees: Cell<u32>,
    neighbour: RefCell<Option<(Sender<T>, Receiver<()>)>>,
}

impl<T> Default for Elsewhere<T> {
    fn default() -> Self {
        Elsewhere { frees: Cell::new(0), neighbour: RefCell::new(None) }
    }
}

impl<T: Send + 'static> Elsewhere<T> {
    /// Drops it, here or there, and returns when that is done.
    pub(super) fn free(&self, what: T) {
        let frees = self.frees.get().wrapping_add(1);
        self.frees.set(frees);
        if frees.is_multiple_of(ENDS) {
            thread::spawn(move || drop(what)).join().expect("a drop does not panic");
        } else if frees.is_multiple_of(STAYS) {
            self.hand_over(what);
        } else {
            drop(what);
        }
    }

    fn hand_over(&self, what: T) {
        let mut neighbour = self.neighbour.borrow_mut();
        let (give, done) = neighbour.get_or_insert_with(|| {
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
        give.send(what).ok().and_then(|()| done.recv().ok()).expect("the neighbour lives");
    }
}

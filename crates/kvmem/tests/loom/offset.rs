//! The hint of an offset space: read without the lock, and never below the truth of what happened
//! before.
//!
//! "Happened before" is meant as the memory model means it: in the same thread, or passed on by a
//! join, or by a Release store that an Acquire load has read.

use kvmem::offset::AllocError;
use kvmem::offset::loom_face::{Granted, Model};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

const ALL: u64 = 100;

/// A space in pieces of these sizes, all in use.
fn full(sizes: &[u64]) -> (Arc<Model>, Vec<Granted>) {
    let space = Arc::new(Model::new(sizes.iter().sum()));
    let granted = sizes.iter().map(|size| space.allocate(*size).expect("there is room")).collect();
    assert_eq!(space.hint(), 0);
    (space, granted)
}

fn spawn(space: &Arc<Model>, work: impl FnOnce(&Model) + 'static) -> thread::JoinHandle<()> {
    let space = space.clone();
    thread::spawn(move || work(&space))
}

/// Whether `size` bytes, which are known to be free in one piece, can be had.
fn must_fit(space: &Model, size: u64) {
    let hint = space.hint();
    assert!(hint >= size, "the hint is {hint}, but {size} bytes were freed before");
    let granted = space.allocate(size).expect("a request was refused that fits");
    space.free(granted);
}

#[test]
fn a_free_that_was_told_of_is_seen() {
    loom::model(|| {
        let (space, mut granted) = full(&[ALL]);
        let told = Arc::new(AtomicUsize::new(0));
        let granted = granted.remove(0);
        let freeing = {
            let told = told.clone();
            spawn(&space, move |space| {
                space.free(granted);
                told.store(1, Ordering::Release);
            })
        };
        if told.load(Ordering::Acquire) == 1 {
            must_fit(&space, ALL);
        }
        freeing.join().unwrap();
        must_fit(&space, ALL);
        space.check();
    });
}

#[test]
fn two_frees_at_a_time_are_both_seen() {
    loom::model(|| {
        let (space, mut granted) = full(&[30, 20, 50]);
        let told = Arc::new(AtomicUsize::new(0));
        // The middle one joins what the others leave.
        let (last, middle) = (granted.remove(2), granted.remove(1));
        let threads = [(middle, 20), (last, 50)].map(|(granted, size)| {
            let told = told.clone();
            spawn(&space, move |space| {
                space.free(granted);
                // Its own free, at least, happened before: nobody allocates yet.
                assert!(space.hint() >= size);
                told.fetch_add(1, Ordering::AcqRel);
            })
        });
        if told.load(Ordering::Acquire) == 2 {
            assert!(space.hint() >= 70);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        must_fit(&space, 70);
        space.check();
    });
}

/// One thread's frees and another's requests: whoever is refused, is refused for something that was
/// in use.
#[test]
fn requests_beside_frees() {
    loom::model(|| {
        let (space, mut granted) = full(&[60, 40]);
        let low = granted.remove(0);
        let freeing = spawn(&space, move |space| space.free(low));
        let mine = space.allocate(60);
        match &mine {
            Ok(granted) => assert_eq!(granted.range(), 0..60),
            // What it says is free was free at some moment of the call.
            Err(error) => assert!(
                matches!(
                    error,
                    AllocError::OutOfSpace { requested: 60, free: 0 | 60, largest_free: 0 }
                ),
                "{error:?}"
            ),
        }
        freeing.join().unwrap();
        if let Ok(granted) = mine {
            let error = space.allocate(60).expect_err("it is in use");
            assert_eq!(error, AllocError::OutOfSpace { requested: 60, free: 0, largest_free: 0 });
            space.free(granted);
        }
        must_fit(&space, 60);
        space.free(granted.remove(0));
        must_fit(&space, ALL);
        space.check();
    });
}

/// Two threads that allocate and free at once: in the end all is there, and the hint says so.
#[test]
fn two_threads_come_and_go() {
    loom::model(|| {
        let space = Arc::new(Model::new(ALL));
        let threads = [40, 60].map(|size| {
            spawn(&space, move |space| {
                let granted = space.allocate(size).expect("there is room for both");
                space.free(granted);
                // The other has its own part at most.
                assert!(space.hint() >= size);
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        must_fit(&space, ALL);
        space.check();
    });
}

#[test]
fn room_that_was_added_is_seen() {
    loom::model(|| {
        let (space, mut granted) = full(&[ALL]);
        let granted = granted.remove(0);
        let growing = spawn(&space, |space| {
            space.grow(2 * ALL);
            assert!(space.hint() >= ALL);
        });
        space.free(granted);
        assert!(space.hint() >= ALL);
        growing.join().unwrap();
        must_fit(&space, 2 * ALL);
        space.check();
    });
}

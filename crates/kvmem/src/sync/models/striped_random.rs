//! The striped lock with more threads than loom can check all orders of, with stripes that are left
//! out and joined again.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use shuttle::sync::Arc;
use shuttle::thread;

use super::random::check;
use crate::sync::{AtomicU32 as OwnNumber, Striped};

/// A striped lock with a number as the state of each stripe.
type CountedLock = Striped<Inside, OwnNumber>;

/// The current holders. The standard atomics: they cause no change of thread.
#[derive(Default)]
struct Inside {
    readers: AtomicU32,
    writer: AtomicBool,
}

impl Inside {
    fn read(&self) {
        self.readers.fetch_add(1, Ordering::Relaxed);
        thread::yield_now();
        assert!(!self.writer.load(Ordering::Relaxed), "a reader meets a writer");
        self.readers.fetch_sub(1, Ordering::Relaxed);
    }

    fn write(&self) {
        assert!(!self.writer.swap(true, Ordering::Relaxed), "two writers");
        thread::yield_now();
        assert_eq!(self.readers.load(Ordering::Relaxed), 0, "a writer meets readers");
        self.writer.store(false, Ordering::Relaxed);
    }
}

#[test]
fn readers_and_writers() {
    check(|| {
        let lock = Arc::new(CountedLock::new(Inside::default()));
        let note = |lock: &CountedLock, number| {
            let inside = lock.read(number);
            inside.read();
            let own = inside.own();
            own.store(own.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        };
        let reports = |lock: &CountedLock| -> u32 {
            let mut writing = lock.write();
            let (inside, all) = writing.parts();
            inside.write();
            all.map(|own| own.swap(0, Ordering::Relaxed)).sum()
        };
        // There are two stripes: the first and the third reader share one.
        let readers = [0, 1, 2].map(|number| {
            let lock = lock.clone();
            thread::spawn(move || (0..3).for_each(|_| note(&lock, number)))
        });
        let writers = [(), ()].map(|()| {
            let lock = lock.clone();
            thread::spawn(move || (0..4).map(|_| reports(&lock)).sum::<u32>())
        });
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        let early: u32 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        assert_eq!(early + reports(&lock), 9);
    });
}

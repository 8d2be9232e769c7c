//! Models of a word: a reader that has loaded other bytes finds its pins revoked.
//!
//! The other models leave out one fence each, or misplace it, and fail.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

use super::order;

const HELD: u64 = 7;
const REVOKED: u64 = 8;

/// Revokes the pins of a reader and gives their block to a writer, while the reader reads.
fn model(writer_fence: fn(), is: fn(&AtomicU64, u64) -> bool) {
    loom::model(move || {
        let word = Arc::new(AtomicU64::new(HELD));
        let block = Arc::new(AtomicU64::new(1));
        // The tail of the ring by which the writer gets the block.
        let passed = Arc::new(AtomicU64::new(0));
        let server = {
            let (word, passed) = (Arc::clone(&word), Arc::clone(&passed));
            thread::spawn(move || {
                order::announce(&word, REVOKED);
                passed.store(1, Ordering::Release);
            })
        };
        let writer = {
            let block = Arc::clone(&block);
            thread::spawn(move || {
                if passed.load(Ordering::Acquire) == 1 {
                    writer_fence();
                    block.store(2, Ordering::Relaxed);
                }
            })
        };
        let read = block.load(Ordering::Relaxed);
        let valid = is(&word, HELD);
        assert!(read == 1 || !valid, "other bytes were taken for those of the value");
        server.join().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn a_reader_of_other_bytes_finds_its_pins_revoked() {
    model(order::before_writing, order::is);
}

#[test]
#[should_panic(expected = "other bytes were taken for those of the value")]
fn without_the_fence_of_the_reader_the_model_fails() {
    model(order::before_writing, |word, value| word.load(Ordering::Relaxed) == value);
}

#[test]
#[should_panic(expected = "other bytes were taken for those of the value")]
fn without_the_fence_of_the_writer_the_model_fails() {
    model(|| (), order::is);
}

/// The fence must come between the load of the bytes and that of the word.
#[test]
#[should_panic(expected = "other bytes were taken for those of the value")]
fn a_fence_after_the_load_of_the_word_is_too_late() {
    model(order::before_writing, |word, value| {
        let found = word.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        found == value
    });
}

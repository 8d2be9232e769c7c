//! *Order*: the accesses to a word, and their fences.

use crate::sync::{AtomicU64, Ordering, fence};

/// Says that the pins of a session have ended. The server calls it before it frees their blocks.
pub(super) fn announce(word: &AtomicU64, value: u64) {
    // Relaxed: the message that gives a freed block to another client is sent later, by a Release
    // store of the ring's tail or by a system call. Its receipt orders this store before the fence
    // of `before_writing`.
    word.store(value, Ordering::Relaxed);
}

/// Orders what this thread has received before the bytes that it writes next.
pub(crate) fn before_writing() {
    // Release: pairs with the Acquire fence of `is`, in the process of a reader that has loaded one
    // of these bytes.
    fence(Ordering::Release);
}

/// Returns whether the word has a value, after all loads that the thread has made before.
pub(super) fn is(word: &AtomicU64, value: u64) -> bool {
    // Acquire: pairs with the Release fence of `before_writing`. The loads of the bytes come first.
    fence(Ordering::Acquire);
    // Relaxed: the fence orders it.
    word.load(Ordering::Relaxed) == value
}

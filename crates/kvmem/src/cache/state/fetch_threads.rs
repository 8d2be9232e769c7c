//! *Fetch threads*: the threads in the background that read from the lower tier.

use std::mem;
use std::sync::PoisonError;
use std::thread::{self, JoinHandle};

/// The threads of a cache.
#[derive(Debug, Default)]
pub(in crate::cache) struct FetchThreads(std::sync::Mutex<Vec<JoinHandle<()>>>);

impl FetchThreads {
    /// Adds a thread that has been started.
    pub(in crate::cache) fn add(&self, thread: JoinHandle<()>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    /// Waits for the end of all threads, but not for this one: it may have the last handle of the
    /// cache.
    pub(super) fn join(&mut self) {
        for thread in mem::take(self.0.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            if thread.thread().id() != thread::current().id() {
                // The thread catches panics.
                let _ = thread.join();
            }
        }
    }

    /// Forgets the threads, which exist in the parent of this process alone.
    pub(super) fn forget(&mut self) {
        mem::forget(mem::take(self.0.get_mut().unwrap_or_else(PoisonError::into_inner)));
    }
}

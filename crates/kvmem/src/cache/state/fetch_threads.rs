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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::sys::forked;

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn threads_are_joined_unless_they_are_forgotten_and_no_thread_joins_itself() {
        let mut threads = FetchThreads::default();
        let (send, received) = channel::<()>();
        let (done, end) = channel();
        threads.add(thread::spawn(move || {
            let _ = received.recv();
            done.send(()).expect("the test waits");
        }));
        // A child has no thread that could end.
        let status = forked(|| {
            threads.forget();
            threads.join();
            threads.0.get_mut().unwrap().len() as i32
        });
        assert_eq!((status, threads.0.get_mut().unwrap().len()), (0, 1));
        drop(send);
        threads.join();
        assert_eq!((end.try_recv(), threads.0.get_mut().unwrap().len()), (Ok(()), 0));
        // The last handle of a cache may be that of its own thread.
        let (give, given) = channel::<FetchThreads>();
        let itself = thread::spawn(move || given.recv().expect("it is sent").join());
        let own = FetchThreads::default();
        let (ended, is_ended) = channel();
        own.add(thread::spawn(move || ended.send(()).expect("the test waits")));
        give.send(own).expect("the thread waits");
        itself.join().unwrap();
        assert_eq!(is_ended.try_recv(), Ok(()));
    }
}

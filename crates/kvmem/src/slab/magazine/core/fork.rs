//! *Forks*: no lock is held in a child, and the caches of threads that it does not have end.
//!
//! All functions are called under the lock of the registry of threads.

use std::ptr;

use super::super::depot::Depot;
use super::super::source::RoundSource;
use super::super::thread_cache::OwnCache;
use super::state::MagazineCore;

impl<R: Copy + Send + 'static, S: RoundSource<R>> MagazineCore<R, S> {
    /// Calls `run` with each thread that has a cache.
    pub(crate) fn each_thread(&self, mut run: impl FnMut(*const ())) {
        self.caches.lock().iter().for_each(|cache| run(cache.thread()));
    }

    /// Takes every lock that a fork must not find held, including the owners'.
    pub(crate) fn prefork(&self) {
        let mut caches = self.caches.lock();
        std::mem::forget(caches.stop());
        std::mem::forget(caches);
        self.depots.iter().for_each(Depot::prefork);
        self.source.prefork();
    }

    /// Releases the locks after a fork, in the parent and in the child.
    ///
    /// # Safety
    ///
    /// This thread, or the thread that forked it, has called `prefork`, and `postfork` was not
    /// called since.
    pub(crate) unsafe fn postfork(&self) {
        self.source.postfork();
        self.depots.iter().for_each(Depot::postfork);
        // SAFETY: `prefork`, which the caller promises, took the list's lock and forgot its guard:
        // this thread alone uses the list until the lock is released below. `prefork` also stopped
        // the owners and forgot the result.
        unsafe {
            (*self.caches.data_ptr()).resume();
            self.caches.force_unlock();
        }
    }

    /// Repairs the instance in the child, after `postfork`. Only `thread` exists in the child: the
    /// rounds in the other threads' caches move to the depot, and the rounds they had in flight are
    /// lost.
    ///
    /// # Safety
    ///
    /// The process has only this thread, and it uses no cache of this instance now.
    pub(crate) unsafe fn postfork_child(&self, thread: *const ()) {
        // SAFETY: the caller promises that this thread is the only one, and it is not trimming. So
        // no guard of the lock is in use. Unlocking a free lock does nothing.
        unsafe { self.trims.force_unlock() };
        let orphan = || {
            let caches = self.caches.lock();
            let orphan = caches.iter().find(|cache| !ptr::eq(cache.thread(), thread));
            orphan.map(|cache| cache.as_ptr().as_ptr())
        };
        while let Some(block) = orphan() {
            // SAFETY: the cache is in the list, so it is alive. Its owner does not exist in the
            // child, and this thread takes its place.
            if let Some(own) = unsafe { OwnCache::from_raw(block.cast()) } {
                // SAFETY: the cache belongs to this instance. Its owner does not exist, and other
                // threads neither.
                unsafe { self.retire(own) };
            }
        }
        self.transfers.reset_in_child();
        self.list.reset_in_child();
        self.moves.reset_in_child();
        self.bypass.reset_in_child();
        // SAFETY: the caller promises that the process has only this thread.
        unsafe { self.source.postfork_child() };
        let with_magazines =
            self.caches.lock().iter().filter(|cache| cache.has_magazines()).count();
        let nodes = self.depots.iter().map(Depot::holders).sum::<usize>();
        self.holders.reset_in_child(with_magazines + nodes);
    }
}

//! *Stop*: keeps all owners out of their caches for a moment.
//!
//! The thread that stops the owners holds the lock of the list. It requests that all owners stay
//! out, runs a barrier on all threads, and waits until each owner is out (see [owner
//! lock](super::owner_lock)).

use super::access::CacheAccess;
use super::list::Caches;
use crate::sync::{Ordering, fence, heavy_fence};

/// The caches whose owners are stopped; dropping it resumes them.
pub(crate) struct StoppedCaches<'a, R: Copy + 'static>(&'a Caches<R>);

impl<R: Copy + 'static> Caches<R> {
    /// Stops all owners. An owner that cannot be stopped is left out: see
    /// [`OwnerLock::wait_until_out`](super::owner_lock::OwnerLock::wait_until_out).
    pub(crate) fn stop(&mut self) -> StoppedCaches<'_, R> {
        self.iter().for_each(|cache| cache.header().owner.stop());
        let reached = self.barrier();
        for cache in self.iter() {
            let stopped = cache.header().owner.wait_until_out(reached);
            // SAFETY: `&mut self` shows that this thread holds the lock of the list.
            unsafe { cache.list_state() }.stopped.set(stopped);
        }
        StoppedCaches(self)
    }

    /// Makes every thread run a barrier and returns true, or makes the owners use fences from now
    /// on and returns false.
    fn barrier(&mut self) -> bool {
        let reached = !self.fenced && heavy_fence();
        if !reached {
            self.fenced = true;
            self.iter().for_each(|cache| cache.header().owner.make_fenced());
        }
        // SeqCst pairs with the fence in `enter_slow`: the stops come before the loads that follow.
        fence(Ordering::SeqCst);
        reached
    }

    /// Resumes the owners after a fork.
    ///
    /// # Safety
    ///
    /// This thread, or the thread that forked it, has called [`stop`](Self::stop) and forgotten the
    /// result, and holds the lock of the list.
    pub(crate) unsafe fn resume(&self) {
        drop(StoppedCaches(self));
    }
}

impl<R: Copy + 'static> StoppedCaches<'_, R> {
    /// Returns the list.
    pub(crate) fn caches(&self) -> &Caches<R> {
        self.0
    }

    /// Iterates over the stopped caches.
    pub(crate) fn accesses(&self) -> impl Iterator<Item = CacheAccess<'_, R>> {
        // SAFETY: this value borrows the list under its lock.
        let stopped = self.0.iter().filter(|cache| unsafe { cache.list_state() }.stopped.get());
        // SAFETY: the owner is out and stays out until this value is dropped, which the result
        // borrows. No other thread stops owners meanwhile: it would need the lock of the list.
        stopped.map(|cache| unsafe { CacheAccess::new(cache) })
    }
}

impl<R: Copy + 'static> Drop for StoppedCaches<'_, R> {
    fn drop(&mut self) {
        for cache in self.0.iter() {
            // SAFETY: this value borrows the list under its lock.
            if unsafe { cache.list_state() }.stopped.replace(false) {
                // SAFETY: `stop` stopped the owner, and the accesses to its cache, which borrowed
                // this value, are gone.
                unsafe { cache.header().owner.resume() };
            }
        }
    }
}

//! *Caches*: those of all threads, linked.
//!
//! The links change under the lock of the list. Who only wants to count follows them without it
//! ([`CacheList::read_unlocked`]): a report must not be what a thread waits for that comes for the first time, or
//! reaps. So the memory of a cache whose thread has ended is not freed while anybody looks; it is
//! *buried*, and freed with the next one that ends when nobody does. A buried cache still has its
//! link, so a look that stands on it goes on to the others.

use std::ptr;
use std::sync::Arc;

use crate::sync::{AtomicPtr, AtomicUsize, Ordering, fence};

use super::thread_cache::{CacheRef, ThreadCache};

/// The links. Changed by who has the lock of [`Caches`].
pub(super) struct CacheList<R> {
    first: AtomicPtr<ThreadCache<R>>,
    /// Those who follow the links without the lock.
    readers: AtomicUsize,
}

/// Under the lock.
pub(super) struct Caches<R> {
    list: Arc<CacheList<R>>,
    /// Caches that are in the list no more, linked by `next_retired`.
    retired: *mut ThreadCache<R>,
}

// SAFETY: a cache's cells are used under the owner's lock or under the lock of this list, `nested`,
// `scratch` and `thread` by the owner alone; the rounds in it may go to other threads.
unsafe impl<R: Send> Send for Caches<R> {}

/// Caches that nobody can come to any more: their memory goes when this is dropped, which is to be
/// done under no lock.
pub(super) struct RetiredCaches<R: Copy + 'static>(*mut ThreadCache<R>);

impl<R: Copy + 'static> Drop for RetiredCaches<R> {
    fn drop(&mut self) {
        while let Some(local) = CacheRef::from_raw(self.0.cast()) {
            self.0 = local.cache().next_retired.get();
            // SAFETY: who made this has said so.
            drop(unsafe { local.destroy() });
        }
    }
}

impl<R: Copy + 'static> Caches<R> {
    pub(super) fn new() -> Self {
        let list =
            CacheList { first: AtomicPtr::new(ptr::null_mut()), readers: AtomicUsize::new(0) };
        Caches { list: Arc::new(list), retired: ptr::null_mut() }
    }

    pub(super) fn list(&self) -> Arc<CacheList<R>> {
        Arc::clone(&self.list)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = CacheRef<R>> + use<R> {
        self.list.iter()
    }

    /// One more.
    pub(super) fn add(&mut self, local: CacheRef<R>) {
        // Relaxed, both: changed under the lock only; the Release below.
        local.cache().next.store(self.list.first.load(Ordering::Relaxed), Ordering::Relaxed);
        // Release pairs with the Acquire in `iter`: who finds the cache finds it whole.
        self.list.first.store(local.as_ptr(), Ordering::Release);
    }

    /// One less. What comes back is all that can be freed now.
    ///
    /// # Safety
    ///
    /// It is in the list, and its thread does not use it any more.
    #[must_use]
    pub(super) unsafe fn remove(&mut self, local: CacheRef<R>) -> RetiredCaches<R> {
        // Relaxed: changed under the lock only.
        let next = local.cache().next.load(Ordering::Relaxed);
        let before = self.iter().find(|cache| {
            // Relaxed: as above.
            ptr::eq(cache.cache().next.load(Ordering::Relaxed), local.as_ptr())
        });
        let link = before.as_ref().map_or(&self.list.first, |cache| &cache.cache().next);
        // Release pairs with the Acquire in `iter`: what follows is found whole, as from the one
        // that goes.
        link.store(next, Ordering::Release);
        local.cache().next_retired.set(self.retired);
        self.retired = local.as_ptr();
        // SeqCst pairs with the fence in `read_unlocked`: either the look is counted here, or it finds the
        // links as they are now.
        fence(Ordering::SeqCst);
        // Acquire pairs with the Release at the end of a look: what it has read it has read.
        if self.list.readers.load(Ordering::Acquire) > 0 {
            return RetiredCaches(ptr::null_mut());
        }
        RetiredCaches(std::mem::replace(&mut self.retired, ptr::null_mut()))
    }
}

impl<R: Copy + 'static> CacheList<R> {
    fn iter(&self) -> impl Iterator<Item = CacheRef<R>> + use<R> {
        // Acquire, both, pair with the Release in `add` and `remove`.
        let mut at = self.first.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let local = CacheRef::from_raw(at.cast())?;
            at = local.cache().next.load(Ordering::Acquire);
            Some(local)
        })
    }

    /// Runs with the caches that are there, of which only what is atomic may be read. Nobody waits
    /// for it.
    pub(super) fn read_unlocked<T>(
        &self,
        read_unlocked: impl FnOnce(&mut dyn Iterator<Item = CacheRef<R>>) -> T,
    ) -> T {
        struct Reader<'a>(&'a AtomicUsize);
        impl Drop for Reader<'_> {
            fn drop(&mut self) {
                // Release pairs with the Acquire in `remove`.
                self.0.fetch_sub(1, Ordering::Release);
            }
        }
        // Relaxed: the fence.
        self.readers.fetch_add(1, Ordering::Relaxed);
        let _reader = Reader(&self.readers);
        // SeqCst pairs with the fence in `remove`.
        fence(Ordering::SeqCst);
        read_unlocked(&mut self.iter())
    }

    /// Nobody looks: for a forked child, which has one thread.
    #[cfg(not(loom))]
    pub(super) fn reset_in_child(&self) {
        // Relaxed: there is one thread.
        self.readers.store(0, Ordering::Relaxed);
    }
}

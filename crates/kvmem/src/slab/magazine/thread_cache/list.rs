//! *Caches*: the caches of all threads of one instance, in a linked list.
//!
//! The links change under the lock of the list. Statistics follow them without the lock
//! ([`CacheList::read_unlocked`]), because a thread that uses the instance for the first time, or
//! reclaims, must not wait for a report. The memory of a cache whose thread has ended is therefore
//! not freed while any reader follows the links. The cache is *retired*, and its memory is freed
//! when a later cache ends while there is no reader. A retired cache keeps its link, so a reader
//! that is at it continues to the others.

use std::ptr;
use std::sync::Arc;

use crate::sync::{AtomicPtr, AtomicUsize, Ordering, fence};

use super::block::{CacheRef, ThreadCache};

/// The links. Changed under the lock of [`Caches`].
pub(crate) struct CacheList<R> {
    first: AtomicPtr<ThreadCache<R>>,
    /// The number of threads that follow the links without the lock.
    readers: AtomicUsize,
}

/// The list's state under its lock.
pub(crate) struct Caches<R> {
    list: Arc<CacheList<R>>,
    /// Caches removed from the list, linked by `next_retired`.
    retired: *mut ThreadCache<R>,
}

// SAFETY: a cache's cells are used under the owner's lock or under the lock of this list;
// `in_slow_path`, `scratch` and `thread` are used by the owner only; the rounds in a cache may go
// to other threads.
unsafe impl<R: Send> Send for Caches<R> {}

/// Caches that no thread can reach any more. Dropping the value frees their memory; the caller must
/// not hold a lock then.
pub(crate) struct RetiredCaches<R: Copy + 'static>(*mut ThreadCache<R>);

impl<R: Copy + 'static> Drop for RetiredCaches<R> {
    fn drop(&mut self) {
        while let Some(local) = CacheRef::from_raw(self.0.cast()) {
            self.0 = local.cache().next_retired.get();
            // SAFETY: `Caches::remove`, which made this value, ensures that no thread uses the
            // cache.
            drop(unsafe { local.destroy() });
        }
    }
}

impl<R: Copy + 'static> Caches<R> {
    pub(crate) fn new() -> Self {
        let list =
            CacheList { first: AtomicPtr::new(ptr::null_mut()), readers: AtomicUsize::new(0) };
        Caches { list: Arc::new(list), retired: ptr::null_mut() }
    }

    pub(crate) fn list(&self) -> Arc<CacheList<R>> {
        Arc::clone(&self.list)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = CacheRef<R>> + use<R> {
        self.list.iter()
    }

    /// Adds a cache.
    pub(crate) fn add(&mut self, local: CacheRef<R>) {
        // Relaxed, both: changed under the lock only; see the Release below.
        local.cache().next.store(self.list.first.load(Ordering::Relaxed), Ordering::Relaxed);
        // Release pairs with the Acquire in `iter`: a reader that finds the cache sees all of it.
        self.list.first.store(local.as_ptr(), Ordering::Release);
    }

    /// Removes a cache. Returns all retired caches that can be freed now.
    ///
    /// # Safety
    ///
    /// The cache is in the list, and its thread no longer uses it.
    #[must_use]
    pub(crate) unsafe fn remove(&mut self, local: CacheRef<R>) -> RetiredCaches<R> {
        // Relaxed: changed under the lock only.
        let next = local.cache().next.load(Ordering::Relaxed);
        let before = self.iter().find(|cache| {
            // Relaxed: changed under the lock only.
            ptr::eq(cache.cache().next.load(Ordering::Relaxed), local.as_ptr())
        });
        let link = before.as_ref().map_or(&self.list.first, |cache| &cache.cache().next);
        // Release pairs with the Acquire in `iter`: a reader sees all of the next cache, as it did
        // through the removed one.
        link.store(next, Ordering::Release);
        local.cache().next_retired.set(self.retired);
        self.retired = local.as_ptr();
        // SeqCst pairs with the fence in `read_unlocked`: either the reader is counted here, or the
        // reader finds the changed links.
        fence(Ordering::SeqCst);
        // Acquire pairs with the Release at the end of a reading: its loads are done.
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

    /// Runs `look` with all caches, without the lock. `look` may read only their atomic fields. No
    /// thread waits for it.
    pub(crate) fn read_unlocked<T>(
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
        // Relaxed: ordered by the fence.
        self.readers.fetch_add(1, Ordering::Relaxed);
        let _reader = Reader(&self.readers);
        // SeqCst pairs with the fence in `remove`.
        fence(Ordering::SeqCst);
        read_unlocked(&mut self.iter())
    }

    /// Resets the number of readers. For a forked child, in which they do not exist.
    #[cfg(not(loom))]
    pub(crate) fn reset_in_child(&self) {
        // Relaxed: the process has one thread.
        self.readers.store(0, Ordering::Relaxed);
    }
}

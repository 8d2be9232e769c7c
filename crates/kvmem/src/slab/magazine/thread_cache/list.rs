//! *Caches*: the caches of all threads of one instance, in a linked list.
//!
//! The links change under the lock of the list. Statistics follow them without the lock
//! ([`CacheList::read_unlocked`]), because a thread that uses the instance for the first time, or
//! reclaims, must not wait for a report. The memory of a cache whose thread has ended is therefore
//! not freed while any reader follows the links. The cache is *retired*, and its memory is freed
//! when a later cache ends while there is no reader. A retired cache keeps its link, so a reader
//! that is at it continues to the others.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::sync::{AtomicPtr, AtomicUsize, Ordering, fence, heavy_fence_fails};

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
    /// Owners have to make fences.
    pub(super) fenced: bool,
}

// SAFETY: the list owns the blocks of its caches. Their cells are used by the thread that has the
// right to (see `block.rs`), and the rounds in a cache may go to other threads.
unsafe impl<R: Send> Send for Caches<R> {}

/// Caches that no thread can reach any more. Dropping the value frees their memory; the caller must
/// not hold a lock then.
pub(crate) struct RetiredCaches<R: Copy + 'static>(*mut ThreadCache<R>);

impl<R: Copy + 'static> Drop for RetiredCaches<R> {
    fn drop(&mut self) {
        while let Some(block) = NonNull::new(self.0) {
            // SAFETY: `Caches::remove`, which made this value, took the cache out of the list when
            // no reader followed the links, so no other code reaches it. Its block is alive until
            // the next statement.
            unsafe {
                let cache = CacheRef::from_raw(block.as_ptr()).expect("not null");
                self.0 = cache.list_state().next_retired.get();
                drop(ThreadCache::destroy(block));
            }
        }
    }
}

impl<R: Copy + 'static> Caches<R> {
    pub(crate) fn new() -> Self {
        let list =
            CacheList { first: AtomicPtr::new(ptr::null_mut()), readers: AtomicUsize::new(0) };
        Caches { list: Arc::new(list), retired: ptr::null_mut(), fenced: heavy_fence_fails() }
    }

    pub(crate) fn list(&self) -> Arc<CacheList<R>> {
        Arc::clone(&self.list)
    }

    /// Iterates over the caches in the list.
    pub(crate) fn iter(&self) -> impl Iterator<Item = CacheRef<'_, R>> {
        // SAFETY: caches leave the list, and are destroyed, by a mutable borrow of `self` only.
        unsafe { self.list.iter() }
    }

    /// Makes a cache for a thread and adds it; `None` if the system has no memory. The cache stays
    /// in the list until [`remove`](Self::remove).
    pub(crate) fn add(
        &mut self,
        classes: usize,
        thread: *const (),
    ) -> Option<NonNull<ThreadCache<R>>> {
        let block = ThreadCache::create(classes, self.fenced, thread)?;
        // SAFETY: the block is new, and no other code can destroy it.
        let header = unsafe { block.as_ref() };
        // Relaxed, both: changed under the lock only; see the Release below.
        header.next.store(self.list.first.load(Ordering::Relaxed), Ordering::Relaxed);
        // Release pairs with the Acquire in `iter`: a reader that finds the cache sees all of it.
        self.list.first.store(block.as_ptr(), Ordering::Release);
        Some(block)
    }

    /// Removes a cache. Returns all retired caches that can be freed now.
    ///
    /// # Safety
    ///
    /// The cache is in this list, and no thread uses it any more, except by this list.
    #[must_use]
    pub(crate) unsafe fn remove(&mut self, block: NonNull<ThreadCache<R>>) -> RetiredCaches<R> {
        // SAFETY: the caller promises that the cache is in the list, so its block is alive.
        let cache = unsafe { CacheRef::from_raw(block.as_ptr()) }.expect("not null");
        // Relaxed: changed under the lock only.
        let next = cache.header().next.load(Ordering::Relaxed);
        let before = self.iter().find(|other| {
            // Relaxed: changed under the lock only.
            ptr::eq(other.header().next.load(Ordering::Relaxed), block.as_ptr())
        });
        let link = before.as_ref().map_or(&self.list.first, |other| &other.header().next);
        // Release pairs with the Acquire in `iter`: a reader sees all of the next cache, as it did
        // through the removed one.
        link.store(next, Ordering::Release);
        // SAFETY: `&mut self` shows that this thread holds the lock of the list.
        unsafe { cache.list_state() }.next_retired.set(self.retired);
        self.retired = block.as_ptr();
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
    /// # Safety
    ///
    /// No cache of the list is destroyed within `'a`.
    unsafe fn iter<'a>(&self) -> impl Iterator<Item = CacheRef<'a, R>> + use<'a, R> {
        // Acquire, both, pair with the Release in `add` and `remove`.
        let mut at = self.first.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: links lead to caches of the list, and the caller promises that these live.
            let cache = unsafe { CacheRef::from_raw(at) }?;
            at = cache.header().next.load(Ordering::Acquire);
            Some(cache)
        })
    }

    /// Runs `look` with all caches, without the lock. No thread waits for it.
    pub(crate) fn read_unlocked<T>(
        &self,
        look: impl for<'a> FnOnce(&mut dyn Iterator<Item = CacheRef<'a, R>>) -> T,
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
        // SAFETY: `remove` retires caches and destroys them only when no reader is counted. `look`
        // cannot keep a reference, because it accepts any lifetime.
        look(&mut unsafe { self.iter() })
    }

    /// Resets the number of readers. For a forked child, in which they do not exist.
    pub(crate) fn reset_in_child(&self) {
        // Relaxed: the process has one thread.
        self.readers.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_no_readers() {
        let list = Caches::<u32>::new().list();
        let inside = list.read_unlocked(|_| list.readers.load(Ordering::Relaxed));
        assert_eq!((inside, list.readers.load(Ordering::Relaxed)), (1, 0));
        list.readers.store(3, Ordering::Relaxed);
        list.reset_in_child();
        assert_eq!(list.readers.load(Ordering::Relaxed), 0);
    }
}

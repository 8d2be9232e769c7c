//! *Object cache*: values of one type that keep their expensive state while they are free.
//!
//! Bonwick's observation: constructing an object often costs more than allocating its memory, and
//! much of the constructed state is still valid when the object is freed. A freed object therefore
//! keeps its value, such as a lock or a buffer's capacity, while it is cached. It is constructed
//! once when it leaves its slab, and dropped once when it returns to it. (*The Slab Allocator*,
//! 1994, section 2.)

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::object_stats::ObjectStats;
use super::object_store::{FreeOnDrop, ObjectMemory, ObjectStore};
use super::slab_error::SlabError;
use crate::slab::magazine::Magazines;
use crate::slab::slabs::Chunk;
use crate::sync::{AtomicU64, Ordering};

/// The state that all handles of a cache share.
pub(super) struct ObjectCacheInner<T: Send + 'static> {
    pub(super) magazines: Magazines<Chunk, ObjectStore<T>>,
    pub(super) construct: Box<dyn Fn() -> T + Send + Sync>,
    pub(super) reset: Box<dyn Fn(&mut T) -> bool + Send + Sync>,
    pub(super) constructed: AtomicU64,
}

/// A cache of constructed values of one type, with magazines for each thread.
///
/// Cloning is cheap: clones are handles of the same cache. Cached values are dropped when the cache
/// is trimmed, or with the last handle.
///
/// ```
/// use kvmem::slab::ObjectCache;
///
/// // Buffers that keep their capacity while they are free, up to 1 MiB.
/// let buffers = ObjectCache::<Vec<u8>>::builder()
///     .reset(|buffer| {
///         buffer.clear();
///         buffer.capacity() <= 1 << 20
///     })
///     .build(|| Vec::with_capacity(4096));
///
/// let mut buffer = buffers.get()?;
/// buffer.extend_from_slice(b"abc");
/// drop(buffer);
///
/// let again = buffers.get()?;
/// assert!(again.is_empty() && again.capacity() >= 4096);
/// # Ok::<(), kvmem::slab::SlabError>(())
/// ```
pub struct ObjectCache<T: Send + 'static> {
    pub(super) inner: Arc<ObjectCacheInner<T>>,
}

impl<T: Send + 'static> ObjectCache<T> {
    /// Drops the cached values of all threads and frees their memory. Must not be called while a
    /// value of this cache is being dropped: it would wait for itself.
    pub fn trim(&self) {
        self.inner.magazines.trim();
        if let ObjectMemory::Slabs(slabs) = &self.inner.magazines.source().memory {
            slabs.pages().trim();
        }
    }

    /// Returns the statistics of the cache. O(threads).
    ///
    /// ```
    /// use kvmem::slab::ObjectCache;
    ///
    /// let cache = ObjectCache::new(|| [0u64; 12]);
    /// let (one, other) = (cache.get()?, cache.get()?);
    /// drop(one);
    /// let stats = cache.stats();
    /// assert_eq!((stats.in_use, stats.cached, stats.constructed), (1, 1, 2));
    /// assert_eq!(stats.object_bytes, 96);
    /// # drop(other);
    /// # Ok::<(), kvmem::slab::SlabError>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> ObjectStats {
        let magazines = self.inner.magazines.stats();
        let memory = match &self.inner.magazines.source().memory {
            ObjectMemory::Slabs(slabs) => Ok(slabs),
            // Relaxed, here and below: statistics.
            ObjectMemory::System(layout, live) => {
                Err((layout.size(), live.load(Ordering::Relaxed)))
            }
        };
        ObjectStats::of(memory, &magazines, self.inner.constructed.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn take(&self) -> Result<NonNull<T>, SlabError> {
        match self.inner.magazines.get_cached(0) {
            Some(chunk) => Ok(chunk.at().cast()),
            None => self.construct(),
        }
    }

    #[cold]
    fn construct(&self) -> Result<NonNull<T>, SlabError> {
        let store = self.inner.magazines.source();
        let at = store.take().ok_or(SlabError::NoMemory { requested: size_of::<T>() })?;
        // SAFETY: `take` returned the memory just now. If the constructor panics, it holds no
        // value.
        let back = unsafe { FreeOnDrop::new(store, at) };
        let value = (self.inner.construct)();
        std::mem::forget(back);
        // SAFETY: `take` returned memory of the size and alignment of a `T`, and to this call
        // alone.
        unsafe { at.write(value) };
        // Relaxed: a statistic.
        self.inner.constructed.fetch_add(1, Ordering::Relaxed);
        Ok(at)
    }

    /// Takes a freed object back.
    ///
    /// # Safety
    ///
    /// The object came from [`take`](Self::take), and no code uses it any more.
    #[inline]
    pub(super) unsafe fn put(&self, mut at: NonNull<T>) {
        // SAFETY: the caller promises that `take` returned the object, so it is a value, and that
        // no other code uses it.
        if (self.inner.reset)(unsafe { at.as_mut() }) {
            // SAFETY: the memory is of the only class, holds a value, and the caller promises that
            // no code uses it any more.
            self.inner.magazines.put(0, unsafe { Chunk::new(at.cast()) });
        } else {
            // SAFETY: the caller promises that `take` returned the object, so its memory came from
            // the store and holds a value, and that no code uses it any more.
            unsafe { self.inner.magazines.source().destroy(at) };
        }
    }
}

impl<T: Send + 'static> Clone for ObjectCache<T> {
    fn clone(&self) -> Self {
        ObjectCache { inner: Arc::clone(&self.inner) }
    }
}

impl<T: Send + 'static> fmt::Debug for ObjectCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectCache").field("object_bytes", &size_of::<T>()).finish_non_exhaustive()
    }
}

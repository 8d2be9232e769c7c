//! *Object cache*: values of one type that keep their expensive state while they are free.
//!
//! Bonwick's observation: constructing an object often costs more than allocating its memory, and
//! much of the constructed state is still valid when the object is freed. A freed object therefore
//! keeps its value, such as a lock or a buffer's capacity, while it is cached. It is constructed
//! once when it leaves its slab, and dropped once when it returns to it. (*The Slab Allocator*,
//! 1994, section 2.)

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::caching::{CachingOptions, magazines};
use super::object_stats::ObjectStats;
use super::slab_allocator::SlabError;
use crate::arena::ExclusiveRegion;
use crate::slab::magazine::Clock;
use crate::slab::magazine::Magazines;
use crate::slab::magazine::RoundSource;
use crate::slab::slabs::Chunk;
use crate::slab::slabs::Slabs;
use crate::slab::slabs::abort_on_fault;
use crate::slab::slabs::{ALIGN, Geometry, MAX_ALIGN, MAX_SIZE_IN_SLAB};
use crate::slab::slabs::{Origin, PageSource};
use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// Where the memory of objects comes from.
enum ObjectMemory {
    /// Slabs of a single class.
    Slabs(Slabs),
    /// The system's allocator, for objects too large or too strictly aligned for slabs; and the
    /// number of these objects.
    System(Layout, AtomicUsize),
}

/// Provides the memory for objects; the magazines above it hold constructed objects.
struct ObjectStore<T> {
    memory: ObjectMemory,
    of: PhantomData<fn() -> T>,
}

impl<T> ObjectStore<T> {
    /// Allocates uninitialized memory for one object.
    fn take(&self) -> Option<NonNull<T>> {
        match &self.memory {
            ObjectMemory::Slabs(slabs) => slabs.take_one(0).map(|chunk| chunk.0.cast()),
            ObjectMemory::System(layout, live) => {
                // SAFETY: the layout is not empty.
                let at = NonNull::new(unsafe { System.alloc(*layout) })?;
                // Relaxed: a statistic.
                live.fetch_add(1, Ordering::Relaxed);
                Some(at.cast())
            }
        }
    }

    /// Frees the memory of one object, which holds no value any more.
    fn give(&self, at: NonNull<T>) {
        match &self.memory {
            ObjectMemory::Slabs(slabs) => slabs.give_one(0, Chunk(at.cast())),
            ObjectMemory::System(layout, live) => {
                // SAFETY: `take` allocated it with this layout.
                unsafe { System.dealloc(at.cast().as_ptr(), *layout) };
                // Relaxed: a statistic.
                live.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// Frees the memory even if dropping the value panics.
struct FreeOnDrop<'a, T>(&'a ObjectStore<T>, NonNull<T>);

impl<T> Drop for FreeOnDrop<'_, T> {
    fn drop(&mut self) {
        self.0.give(self.1);
    }
}

impl<T> ObjectStore<T> {
    /// Drops the value and frees its memory.
    ///
    /// # Safety
    /// `at` holds a value that no code uses any more.
    unsafe fn destroy(&self, at: NonNull<T>) {
        let _back = FreeOnDrop(self, at);
        // SAFETY: the caller's promise.
        unsafe { at.drop_in_place() };
    }
}

impl<T: Send + 'static> RoundSource<Chunk> for ObjectStore<T> {
    /// Does nothing: objects are constructed one by one, on request.
    fn refill(&self, _: usize, _: usize, _: &mut Vec<Chunk>) {}

    fn drain(&self, _: usize, rounds: &mut Vec<Chunk>) {
        for Chunk(at) in rounds.drain(..) {
            // SAFETY: the magazines hold constructed objects only, and this one left them.
            unsafe { self.destroy(at.cast()) };
        }
    }

    /// Returns `None`: objects are constructed one by one, on request.
    fn refill_one(&self, _: usize) -> Option<Chunk> {
        None
    }

    fn drain_one(&self, _: usize, Chunk(at): Chunk) {
        // SAFETY: the magazines hold constructed objects only, and this one left them.
        unsafe { self.destroy(at.cast()) };
    }

    fn prefork(&self) {
        if let ObjectMemory::Slabs(slabs) = &self.memory {
            slabs.prefork();
        }
    }

    fn postfork(&self) {
        if let ObjectMemory::Slabs(slabs) = &self.memory {
            slabs.postfork();
        }
    }

    fn round_bytes(&self, _: usize) -> usize {
        match &self.memory {
            ObjectMemory::Slabs(slabs) => slabs.geometry(0).size,
            ObjectMemory::System(layout, _) => layout.size(),
        }
    }
}

struct ObjectCacheInner<T: Send + 'static> {
    magazines: Magazines<Chunk, ObjectStore<T>>,
    construct: Box<dyn Fn() -> T + Send + Sync>,
    reset: Box<dyn Fn(&mut T) -> bool + Send + Sync>,
    constructed: AtomicU64,
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
    inner: Arc<ObjectCacheInner<T>>,
}

/// A builder for an [`ObjectCache`].
#[must_use = "nothing is made before `build`"]
pub struct ObjectBuilder<T> {
    origin: Origin,
    caching: CachingOptions,
    reset: Box<dyn Fn(&mut T) -> bool + Send + Sync>,
}

impl<T: Send + 'static> ObjectBuilder<T> {
    /// Sets the function that is called when an object is freed. If it returns `true`, the object
    /// keeps its value until it is handed out again. If it returns `false`, the value is dropped.
    /// Default: the value is dropped.
    pub fn reset(self, reset: impl Fn(&mut T) -> bool + Send + Sync + 'static) -> Self {
        ObjectBuilder { reset: Box::new(reset), ..self }
    }

    /// Takes all pages from this region. The cache keeps the region alive. Objects larger than
    /// 32,752 bytes or aligned to more than 64 come from the system's allocator nevertheless.
    pub fn region(self, region: ExclusiveRegion) -> Self {
        ObjectBuilder { origin: Origin::region(region), ..self }
    }

    /// Sets how long the depot keeps full magazines that no thread needs. Default: 15 s.
    pub fn working_set(self, working_set: Duration) -> Self {
        ObjectBuilder { caching: CachingOptions { working_set, ..self.caching }, ..self }
    }

    /// Sets the most bytes that all magazines together may keep. Beyond it, freed objects return to
    /// their slabs one by one. Default: no bound.
    pub fn max_cached_bytes(self, max_bytes: u64) -> Self {
        ObjectBuilder {
            caching: CachingOptions { max_cached_bytes: Some(max_bytes), ..self.caching },
            ..self
        }
    }

    /// Sets the clock that measures the working set's interval. Default: the system's monotonic
    /// clock.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        ObjectBuilder { caching: CachingOptions { clock, ..self.caching }, ..self }
    }

    /// Makes the cache. `construct` is called when an object is requested and none is cached.
    pub fn build(self, construct: impl Fn() -> T + Send + Sync + 'static) -> ObjectCache<T> {
        let align = align_of::<T>().max(ALIGN);
        let size = size_of::<T>().max(1).next_multiple_of(align);
        let memory = if size <= MAX_SIZE_IN_SLAB && align <= MAX_ALIGN {
            let pages = PageSource::new(self.origin);
            ObjectMemory::Slabs(Slabs::new(&[Geometry::new(size)], pages, Arc::new(abort_on_fault)))
        } else {
            ObjectMemory::System(Layout::new::<T>(), AtomicUsize::new(0))
        };
        let magazines = magazines(ObjectStore { memory, of: PhantomData }, 1, self.caching);
        let (construct, constructed) = (Box::new(construct), AtomicU64::new(0));
        ObjectCache {
            inner: Arc::new(ObjectCacheInner {
                magazines,
                construct,
                reset: self.reset,
                constructed,
            }),
        }
    }
}

impl<T: Send + 'static> ObjectCache<T> {
    /// Makes a cache whose free objects keep their values exactly as their last users left them.
    #[must_use]
    pub fn new(construct: impl Fn() -> T + Send + Sync + 'static) -> ObjectCache<T> {
        Self::builder().reset(|_| true).build(construct)
    }

    /// Returns a builder for a cache with other options.
    pub fn builder() -> ObjectBuilder<T> {
        let reset = Box::new(|_: &mut T| false);
        ObjectBuilder { origin: Origin::System, caching: CachingOptions::default(), reset }
    }

    /// Returns a cached object, or a newly constructed one. O(1) besides the constructor. A panic
    /// of the constructor propagates and leaks nothing.
    ///
    /// # Errors
    ///
    /// Returns [`SlabError::NoMemory`] if no memory is left.
    #[inline]
    pub fn get(&self) -> Result<Object<'_, T>, SlabError> {
        let at = self.take()?;
        Ok(Object { cache: self, at })
    }

    /// Returns an object like [`get`](Self::get), in a handle that keeps the cache alive and has no
    /// lifetime.
    ///
    /// # Errors
    ///
    /// Returns [`SlabError::NoMemory`] if no memory is left.
    pub fn get_owned(&self) -> Result<OwnedObject<T>, SlabError> {
        let at = self.take()?;
        Ok(OwnedObject { cache: self.clone(), at })
    }

    /// Appends `count` objects to `out`.
    ///
    /// # Errors
    ///
    /// Returns [`SlabError::NoMemory`] if no memory is left; `out` keeps the objects that were
    /// appended before.
    pub fn get_batch<'a>(
        &'a self,
        count: usize,
        out: &mut Vec<Object<'a, T>>,
    ) -> Result<(), SlabError> {
        out.reserve(count);
        for _ in 0..count {
            out.push(self.get()?);
        }
        Ok(())
    }

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
    fn take(&self) -> Result<NonNull<T>, SlabError> {
        match self.inner.magazines.get_cached(0) {
            Some(chunk) => Ok(chunk.0.cast()),
            None => self.construct(),
        }
    }

    #[cold]
    fn construct(&self) -> Result<NonNull<T>, SlabError> {
        let store = self.inner.magazines.source();
        let at = store.take().ok_or(SlabError::NoMemory { requested: size_of::<T>() })?;
        let back = FreeOnDrop(store, at);
        let value = (self.inner.construct)();
        std::mem::forget(back);
        // SAFETY: the memory is allocated for a `T`, and no other code uses it.
        unsafe { at.write(value) };
        // Relaxed: a statistic.
        self.inner.constructed.fetch_add(1, Ordering::Relaxed);
        Ok(at)
    }

    /// Takes a freed object back.
    ///
    /// # Safety
    /// The object came from [`take`](Self::take), and no code uses it any more.
    #[inline]
    unsafe fn put(&self, mut at: NonNull<T>) {
        // SAFETY: the caller's promise.
        if (self.inner.reset)(unsafe { at.as_mut() }) {
            self.inner.magazines.put(0, Chunk(at.cast()));
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.inner.magazines.source().destroy(at) };
        }
    }
}

impl<T: Send + 'static> Clone for ObjectCache<T> {
    fn clone(&self) -> Self {
        ObjectCache { inner: Arc::clone(&self.inner) }
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident $(<$life:lifetime>)?, $cache:ty) => {
        $(#[$doc])*
        pub struct $name<$($life,)? T: Send + 'static> {
            cache: $cache,
            at: NonNull<T>,
        }

        // SAFETY: the handle is the only access to its value, like a box; any thread may use the
        // cache.
        unsafe impl<$($life,)? T: Send + 'static> Send for $name<$($life,)? T> {}
        // SAFETY: a shared handle gives only a shared reference to the value.
        unsafe impl<$($life,)? T: Send + Sync + 'static> Sync for $name<$($life,)? T> {}

        impl<$($life,)? T: Send + 'static> $name<$($life,)? T> {
            /// Moves the value out of its handle; it is not cached afterwards.
            pub fn into_inner(object: Self) -> T {
                let object = ManuallyDrop::new(object);
                let cache = &object.cache;
                // SAFETY: the handle owns the value and does not drop it.
                let value = unsafe { object.at.read() };
                cache.inner.magazines.source().give(object.at);
                $name::<$($life,)? T>::release_handle(object);
                value
            }
        }

        impl<$($life,)? T: Send + 'static> Deref for $name<$($life,)? T> {
            type Target = T;

            #[inline]
            fn deref(&self) -> &T {
                // SAFETY: the handle owns the value.
                unsafe { self.at.as_ref() }
            }
        }

        impl<$($life,)? T: Send + 'static> DerefMut for $name<$($life,)? T> {
            #[inline]
            fn deref_mut(&mut self) -> &mut T {
                // SAFETY: the handle owns the value.
                unsafe { self.at.as_mut() }
            }
        }

        impl<$($life,)? T: Send + 'static> Drop for $name<$($life,)? T> {
            #[inline]
            fn drop(&mut self) {
                // SAFETY: the handle owns the value and is being dropped.
                unsafe { self.cache.put(self.at) };
            }
        }

        impl<$($life,)? T: Send + fmt::Debug + 'static> fmt::Debug for $name<$($life,)? T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    };
}

handle! {
    /// An object that returns to its cache when it is dropped.
    Object<'a>, &'a ObjectCache<T>
}

handle! {
    /// An object that returns to its cache when it is dropped and keeps the cache alive until then.
    OwnedObject, ObjectCache<T>
}

impl<'a, T: Send + 'static> Object<'a, T> {
    fn release_handle(_: ManuallyDrop<Self>) {}
}

impl<T: Send + 'static> OwnedObject<T> {
    /// Drops the handle of the cache only.
    fn release_handle(mut object: ManuallyDrop<Self>) {
        // SAFETY: the handle is not used again.
        unsafe { std::ptr::drop_in_place(&mut object.cache) };
    }
}

impl<T: Send + 'static> fmt::Debug for ObjectCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectCache").field("object_bytes", &size_of::<T>()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ObjectBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectBuilder").field("working_set", &self.caching).finish_non_exhaustive()
    }
}

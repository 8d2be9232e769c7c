//! *Object builder*: the options of an object cache.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::caching::{CachingOptions, magazines};
use super::object_cache::{ObjectCache, ObjectCacheInner};
use super::object_store::{ObjectMemory, ObjectStore};
use crate::arena::ExclusiveRegion;
use crate::slab::magazine::Clock;
use crate::slab::slabs::{
    ALIGN, Geometry, MAX_ALIGN, MAX_SIZE_IN_SLAB, Origin, PageSource, Slabs, abort_on_fault,
};
use crate::sync::AtomicU64;

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
            ObjectMemory::system::<T>()
        };
        let magazines = magazines(ObjectStore::new(memory), 1, self.caching);
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

impl<T> fmt::Debug for ObjectBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectBuilder").field("working_set", &self.caching).finish_non_exhaustive()
    }
}

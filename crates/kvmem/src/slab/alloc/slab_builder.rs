//! *Slab builder*: the options of a slab allocator.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::block_tracker::BlockTracker;
use super::caching::{CachingOptions, magazines};
use super::shared::Shared;
use super::slab_allocator::SlabAllocator;
use super::slab_settings::{SlabSettingError, SlabSettings};
use crate::arena::ExclusiveRegion;
use crate::slab::magazine::Clock;
use crate::slab::slabs::Slabs;
use crate::slab::slabs::reentrancy;
use crate::slab::slabs::{FaultHook, SlabFault, abort_on_fault};
use crate::slab::slabs::{MAX_SIZE, SIZES, class_of};
use crate::slab::slabs::{Origin, PageSource};
use crate::sync::AtomicUsize;

/// The reason why an allocator could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SlabSetupError {
    /// An environment variable holds an unknown word.
    #[error(transparent)]
    Setting(#[from] SlabSettingError),
    /// The limit exceeds the largest class.
    #[error(
        "cannot serve blocks of up to {requested} bytes from slabs: the largest class has {max} \
         bytes; \
         lower the limit, larger blocks come from the system"
    )]
    Limit {
        /// The requested limit, in bytes.
        requested: usize,
        /// The largest limit, in bytes.
        max: usize,
    },
}

impl SlabAllocator {
    /// Makes an allocator with pages from the system and default options. The environment may
    /// enable debugging; see [`SlabSettings::from_env`](super::SlabSettings::from_env).
    ///
    /// # Errors
    ///
    /// Returns [`SlabSetupError::Setting`] if an environment variable holds an unknown word.
    pub fn new() -> Result<SlabAllocator, SlabSetupError> {
        Self::builder().build()
    }

    /// Returns a builder for an allocator with other options.
    pub fn builder() -> SlabAllocatorBuilder {
        SlabAllocatorBuilder::new()
    }
}

/// A builder for a [`SlabAllocator`].
///
/// ```
/// use kvmem::arena::{ExclusiveRegion, Region};
/// use kvmem::slab::SlabAllocator;
///
/// // Small blocks in a region, which may be on hugepages or on a chosen node.
/// let region = ExclusiveRegion::new(Region::builder(8 << 20).map()?)?;
/// let slabs = SlabAllocator::builder().region(region).limit(1024).build()?;
/// let block = slabs.allocate(24)?;
/// // SAFETY: allocated with this size and not used afterwards.
/// unsafe { slabs.free(block, 24) };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is made before `build`"]
pub struct SlabAllocatorBuilder {
    origin: Origin,
    limit: usize,
    settings: Option<SlabSettings>,
    caching: CachingOptions,
    on_fault: FaultHook,
}

impl SlabAllocatorBuilder {
    pub(crate) fn new() -> SlabAllocatorBuilder {
        let _guard = reentrancy::enter();
        SlabAllocatorBuilder {
            origin: Origin::System,
            limit: MAX_SIZE,
            settings: None,
            caching: CachingOptions::default(),
            on_fault: Arc::new(abort_on_fault),
        }
    }

    /// Takes all pages from this region. The allocator keeps the region alive. When the region is
    /// full, allocations up to the limit fail. In a forked child they fail too, unless the region
    /// was mapped with [`dont_fork(false)`](crate::arena::RegionBuilder::dont_fork), which also
    /// keeps existing blocks valid there.
    pub fn region(self, region: ExclusiveRegion) -> Self {
        SlabAllocatorBuilder { origin: Origin::region(region), ..self }
    }

    pub(crate) fn origin(self, origin: Origin) -> Self {
        SlabAllocatorBuilder { origin, ..self }
    }

    /// Sets the size above which blocks come from the system's allocator, in bytes. At most 8192,
    /// which is the default. With 0, all blocks do.
    pub fn limit(self, limit_bytes: usize) -> Self {
        SlabAllocatorBuilder { limit: limit_bytes, ..self }
    }

    /// Sets the debug settings and ignores the environment.
    pub fn settings(self, settings: SlabSettings) -> Self {
        SlabAllocatorBuilder { settings: Some(settings), ..self }
    }

    /// Sets how long the depot keeps full magazines that no thread needs. Default: 15 s.
    pub fn working_set(self, working_set: Duration) -> Self {
        SlabAllocatorBuilder { caching: CachingOptions { working_set, ..self.caching }, ..self }
    }

    /// Sets the most bytes that all magazines together may keep. Beyond it, freed blocks return to
    /// their slabs one by one. Default: no bound.
    pub fn max_cached_bytes(self, max_bytes: u64) -> Self {
        SlabAllocatorBuilder {
            caching: CachingOptions { max_cached_bytes: Some(max_bytes), ..self.caching },
            ..self
        }
    }

    /// Sets the clock that measures the working set's interval. Default: the system's monotonic
    /// clock.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        SlabAllocatorBuilder { caching: CachingOptions { clock, ..self.caching }, ..self }
    }

    /// Sets the hook that is called for each detected misuse. Debugging detects more, but some
    /// misuse is detected without it. The default hook prints the message to standard error and
    /// aborts the process; for a leak it only prints. After the hook returns, the faulty operation
    /// is skipped and the allocator continues unharmed. The hook must not use the allocator.
    pub fn on_fault(self, hook: impl Fn(&SlabFault) + Send + Sync + 'static) -> Self {
        SlabAllocatorBuilder { on_fault: Arc::new(hook), ..self }
    }

    /// Makes the allocator. No page is mapped before the first allocation.
    ///
    /// # Errors
    ///
    /// Returns [`SlabSetupError::Setting`] if an environment variable holds an unknown word, and
    /// [`SlabSetupError::Limit`] if the limit exceeds 8192 bytes.
    pub fn build(self) -> Result<SlabAllocator, SlabSetupError> {
        let settings = self.settings.map_or_else(SlabSettings::from_env, Ok)?;
        if self.limit > MAX_SIZE {
            return Err(SlabSetupError::Limit { requested: self.limit, max: MAX_SIZE });
        }
        let slab_limit = if settings.always_malloc { 0 } else { self.limit };
        let fast_limit = if settings.debug_blocks { 0 } else { slab_limit };
        let classes = if slab_limit == 0 { 0 } else { class_of(slab_limit) + 1 };
        let slabs = Slabs::new(&SIZES[..classes], PageSource::new(self.origin), self.on_fault);
        let shared = Shared {
            fast_limit,
            slab_limit,
            magazines: magazines(slabs, classes, self.caching),
            debug: settings.debug_blocks.then(BlockTracker::default),
            system_blocks: AtomicUsize::new(0),
            system_bytes: AtomicUsize::new(0),
        };
        Ok(SlabAllocator { shared: Arc::new(shared) })
    }
}

impl fmt::Debug for SlabAllocatorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabAllocatorBuilder")
            .field("limit", &self.limit)
            .field("settings", &self.settings)
            .field("working_set", &self.caching)
            .finish_non_exhaustive()
    }
}

//! *Slice builder*: how an allocator of blocks is to be.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::caching::{CachingOptions, magazines};
use super::class::{MAX_SIZE, SIZES, class_of};
use super::clock::Clock;
use super::debug::BlockTracker;
use super::fault::{self, FaultHook, SlabFault};
use super::page_source::{Origin, PageSource};
use super::reentrancy;
use super::slab_allocator::{Shared, SlabAllocator};
use super::slab_settings::{SlabSettingError, SlabSettings};
use super::slabs::Slabs;
use crate::arena::ExclusiveRegion;
use crate::sync::AtomicUsize;

/// Why an allocator of blocks could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SlabSetupError {
    /// The environment asks for something unknown.
    #[error(transparent)]
    Setting(#[from] SlabSettingError),
    /// The limit is larger than any class.
    #[error(
        "a limit of {requested} bytes was asked for, more than {max}, the largest class; larger blocks are the system's"
    )]
    Limit {
        /// What was asked for, in bytes.
        requested: usize,
        /// The most that may be, in bytes.
        max: usize,
    },
}

/// Describes a [`SlabAllocator`].
///
/// ```
/// use kvmem::arena::{ExclusiveRegion, Region};
/// use kvmem::slab::SlabAllocator;
///
/// // Small blocks on memory that was mapped before: hugepages, a chosen node.
/// let region = ExclusiveRegion::new(Region::builder(8 << 20).map()?)?;
/// let slices = SlabAllocator::builder().region(region).limit(1024).build()?;
/// let block = slices.alloc(24)?;
/// // SAFETY: allocated with this size, and not used any more.
/// unsafe { slices.free(block, 24) };
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
            on_fault: Arc::new(fault::abort),
        }
    }

    /// Pages come from this region, and from nowhere else; it is held until the allocator goes.
    /// When it is full, blocks up to the limit cannot be had. A forked child has its blocks
    /// only if the region was made with
    /// [`dont_fork(false)`](crate::arena::RegionBuilder::dont_fork); otherwise they cannot be had
    /// there.
    pub fn region(self, region: ExclusiveRegion) -> Self {
        SlabAllocatorBuilder { origin: Origin::region(region), ..self }
    }

    pub(crate) fn origin(self, origin: Origin) -> Self {
        SlabAllocatorBuilder { origin, ..self }
    }

    /// Blocks of more bytes than this are the system's: 8192 unless said otherwise, which is the
    /// most. With 0 all are.
    pub fn limit(self, limit_bytes: usize) -> Self {
        SlabAllocatorBuilder { limit: limit_bytes, ..self }
    }

    /// These settings, whatever the environment says.
    pub fn settings(self, settings: SlabSettings) -> Self {
        SlabAllocatorBuilder { settings: Some(settings), ..self }
    }

    /// How long full magazines are kept that nobody needs: 15 s unless said otherwise.
    pub fn working_set(self, working_set: Duration) -> Self {
        SlabAllocatorBuilder { caching: CachingOptions { working_set, ..self.caching }, ..self }
    }

    /// The most bytes that all magazines together may keep; no bound unless said otherwise. Beyond
    /// it, freed blocks go back to their slabs one by one.
    pub fn max_cached_bytes(self, max_bytes: u64) -> Self {
        SlabAllocatorBuilder {
            caching: CachingOptions { max_cached_bytes: Some(max_bytes), ..self.caching },
            ..self
        }
    }

    /// What the working set's time is measured by: the system's monotonic clock unless said
    /// otherwise.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        SlabAllocatorBuilder { caching: CachingOptions { clock, ..self.caching }, ..self }
    }

    /// Who is told of misuse that is found: with debugging, and where it is seen without. Unless
    /// said otherwise the message goes to the standard error stream and the process is aborted;
    /// leaks only have their message. When the hook returns, the operation is left out and the
    /// allocator goes on unharmed. The hook does not use the allocator.
    pub fn on_fault(self, hook: impl Fn(&SlabFault) + Send + Sync + 'static) -> Self {
        SlabAllocatorBuilder { on_fault: Arc::new(hook), ..self }
    }

    /// Makes it. No page is mapped before the first block.
    ///
    /// # Errors
    ///
    /// [`SlabSetupError`].
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
        f.debug_struct("SliceBuilder")
            .field("limit", &self.limit)
            .field("settings", &self.settings)
            .field("working_set", &self.caching)
            .finish_non_exhaustive()
    }
}

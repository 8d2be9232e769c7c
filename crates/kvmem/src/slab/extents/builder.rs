//! *Extent builder*: the options of a cached space.

use thiserror::Error;

use crate::offset::{OffsetAllocator, OffsetAllocatorBuilder, SpaceError};

use super::cache::{ExtentCache, default_bound};
use super::hot::{CLASSES, Detection};

/// The longest hot size, below 4 GiB − 1 B: handles store the lengths of such ranges themselves.
const MAX_HOT_SIZE: u64 = u32::MAX as u64 - 1;

/// The reason why a cached space could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExtentSetupError {
    /// The space itself could not be made.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// A size cannot be hot.
    #[error(
        "cannot cache ranges of {requested} bytes: a hot size is within 1..={max} bytes, no more \
         than \
         the bound of cached bytes; raise the bound"
    )]
    HotSize {
        /// The requested hot size, in bytes.
        requested: u64,
        /// The largest hot size here, in bytes.
        max: u64,
    },
    /// Too many hot sizes.
    #[error(
        "cannot have {requested} hot sizes: the limit is {max}; leave out the sizes that are \
         rarely \
         requested"
    )]
    HotSizes {
        /// The number of requested hot sizes.
        requested: usize,
        /// The largest number of hot sizes.
        max: usize,
    },
}

impl ExtentCache {
    /// Makes a space of `capacity` bytes, 1..=2^63, without a boundary, that detects hot sizes.
    ///
    /// # Errors
    /// Returns the errors of [`OffsetAllocatorBuilder::build`].
    pub fn new(capacity: u64) -> Result<Self, SpaceError> {
        Ok(Self::over(OffsetAllocator::new(capacity)?, &[], Detection::On, None))
    }

    /// Returns a builder for a space with the offset layer's options and the options of the cache.
    ///
    /// ```
    /// use kvmem::offset::OffsetAllocator;
    /// use kvmem::slab::ExtentCache;
    ///
    /// let space = ExtentCache::builder(OffsetAllocator::builder(64 << 30).boundary(1 << 30))
    ///     .hot_sizes([3_274_752, 658_432])
    ///     .auto_hot_sizes(false)
    ///     .build()?;
    /// assert_eq!(space.stats().classes.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(space: OffsetAllocatorBuilder) -> ExtentBuilder {
        ExtentBuilder::new(space)
    }
}

/// A builder for an [`ExtentCache`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct ExtentBuilder {
    space: OffsetAllocatorBuilder,
    hot_sizes: Vec<u64>,
    detection: Detection,
    max_cached_bytes: Option<u64>,
}

impl ExtentBuilder {
    pub(super) fn new(space: OffsetAllocatorBuilder) -> Self {
        ExtentBuilder {
            space,
            hot_sizes: Vec::new(),
            detection: Detection::On,
            max_cached_bytes: None,
        }
    }

    /// Adds sizes, in bytes, that are hot from the beginning and while caching pays off. At most 32
    /// sizes, each no larger than the [bound of cached bytes](Self::max_cached_bytes).
    pub fn hot_sizes(mut self, sizes: impl IntoIterator<Item = u64>) -> Self {
        self.hot_sizes.extend(sizes);
        self
    }

    /// Sets whether further sizes become hot when they are requested repeatedly. Default: they do.
    pub fn auto_hot_sizes(mut self, auto: bool) -> Self {
        self.detection = if auto { Detection::On } else { Detection::Off };
        self
    }

    /// Makes sizes hot when they are requested repeatedly, but none before the first free. Until
    /// then ranges follow each other from offset 0 up, as those of [`OffsetAllocator::allocate`]
    /// do: for owners that allocate again, in the order of their addresses, what a space had before
    /// a restart. Without [`hot_sizes`](Self::hot_sizes).
    pub fn hot_sizes_after_first_free(mut self) -> Self {
        self.detection = Detection::AfterFirstFree;
        self
    }

    /// Sets the most bytes that all caches together may keep. Default: 1/32 of the space, following
    /// its capacity when it is resized.
    pub fn max_cached_bytes(mut self, bytes: u64) -> Self {
        self.max_cached_bytes = Some(bytes);
        self
    }

    /// Makes the space.
    ///
    /// # Errors
    /// Returns [`ExtentSetupError::Space`] if the space cannot be made,
    /// [`ExtentSetupError::HotSize`] if a hot size is 0 or too large, and
    /// [`ExtentSetupError::HotSizes`] if there are more than 32.
    pub fn build(self) -> Result<ExtentCache, ExtentSetupError> {
        let allocator = self.space.build()?;
        let max = self
            .max_cached_bytes
            .unwrap_or_else(|| default_bound(allocator.capacity()))
            .min(MAX_HOT_SIZE);
        let mut sizes = self.hot_sizes;
        sizes.sort_unstable();
        sizes.dedup();
        if let Some(&requested) = sizes.iter().find(|size| !(1..=max).contains(*size)) {
            return Err(ExtentSetupError::HotSize { requested, max });
        }
        if sizes.len() > CLASSES {
            return Err(ExtentSetupError::HotSizes { requested: sizes.len(), max: CLASSES });
        }
        let sizes: Vec<u32> = sizes.iter().map(|size| *size as u32).collect();
        Ok(ExtentCache::over(allocator, &sizes, self.detection, self.max_cached_bytes))
    }
}

//! *Extent builder*: how a cached space is to be.

use thiserror::Error;

use crate::offset::{OffsetAllocatorBuilder, SpaceError};

use super::cache::ExtentCache;
use super::hot::CLASSES;

/// A hot size is shorter than 4 GiB − 1 B: handles know the length of such a range themselves.
const LONGEST: u64 = u32::MAX as u64 - 1;
/// This part of a space may be stranded unless something else is said.
const STRANDED: u64 = 32;

/// Why a cached space could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExtentSetupError {
    /// The space itself.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// A size that cannot be hot.
    #[error(
        "a range of {requested} bytes cannot be cached: a hot size is within 1..={most} bytes, \
         which is no more than may be stranded; allow more to be"
    )]
    HotSize {
        /// The size that was named, in bytes.
        requested: u64,
        /// The greatest that could be named here, in bytes.
        most: u64,
    },
    /// Too many sizes were named.
    #[error(
        "{requested} hot sizes were named, more than {most}; leave out those that are rarely asked for"
    )]
    HotSizes {
        /// How many were named.
        requested: usize,
        /// How many can be.
        most: usize,
    },
}

/// Describes an [`ExtentCache`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct ExtentBuilder {
    space: OffsetAllocatorBuilder,
    hot_sizes: Vec<u64>,
    learns: bool,
    max_cached_bytes: Option<u64>,
}

/// The bound for a space of so many bytes.
pub(super) fn stranded_for(capacity: u64) -> u64 {
    capacity / STRANDED
}

impl ExtentBuilder {
    pub(super) fn new(space: OffsetAllocatorBuilder) -> Self {
        ExtentBuilder { space, hot_sizes: Vec::new(), learns: true, max_cached_bytes: None }
    }

    /// These sizes, in bytes, are hot from the beginning and for ever; at most 32, each no more
    /// than may be [stranded](Self::max_cached_bytes). What was named before stays named.
    pub fn hot_sizes(mut self, sizes: impl IntoIterator<Item = u64>) -> Self {
        self.hot_sizes.extend(sizes);
        self
    }

    /// Whether further sizes become hot that are asked for again and again; they do unless
    /// something else is said.
    pub fn auto_hot_sizes(mut self, learns: bool) -> Self {
        self.learns = learns;
        self
    }

    /// All caches together strand at most so many bytes. Without it a 32nd part of the space, also
    /// after it has grown or shrunk.
    pub fn max_cached_bytes(mut self, bytes: u64) -> Self {
        self.max_cached_bytes = Some(bytes);
        self
    }

    /// Makes the space.
    ///
    /// # Errors
    /// [`ExtentSetupError`].
    pub fn build(self) -> Result<ExtentCache, ExtentSetupError> {
        let allocator = self.space.build()?;
        let most = self
            .max_cached_bytes
            .unwrap_or_else(|| stranded_for(allocator.capacity()))
            .min(LONGEST);
        let mut sizes = self.hot_sizes;
        sizes.sort_unstable();
        sizes.dedup();
        if let Some(&requested) = sizes.iter().find(|size| !(1..=most).contains(*size)) {
            return Err(ExtentSetupError::HotSize { requested, most });
        }
        if sizes.len() > CLASSES {
            return Err(ExtentSetupError::HotSizes { requested: sizes.len(), most: CLASSES });
        }
        let sizes: Vec<u32> = sizes.iter().map(|size| *size as u32).collect();
        Ok(ExtentCache::over(allocator, &sizes, self.learns, self.max_cached_bytes))
    }
}

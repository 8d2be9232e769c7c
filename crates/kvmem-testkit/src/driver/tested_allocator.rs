//! The interface of the allocator that the driver tests, with caches or without.

use std::fmt;
use std::ops::Range;

use anyhow::{Context, Result};
use kvmem::offset::{
    AllocError, Allocation, BinReport, CheckError, Metrics, OffsetAllocator, RawAllocation,
    RawError, RawHandle, SpaceError,
};
use kvmem::slab::{Extent, ExtentCache, ExtentState};

use crate::op::Config;

/// A range with an owner.
#[allow(clippy::len_without_is_empty)] // An owned range is never empty.
pub trait OwnedRange: Sized + Send + fmt::Debug + 'static {
    /// Returns its start.
    fn offset(&self) -> u64;
    /// Returns its length.
    fn len(&self) -> u64;
    /// Returns the whole range.
    fn range(&self) -> Range<u64>;
    /// See [`Allocation::shrink`].
    fn shrink(&mut self, new_size: u64) -> Result<(), AllocError>;
    /// See [`Allocation::extend`].
    fn extend(&mut self, new_size: u64) -> Result<(), AllocError>;
    /// See [`Allocation::free_range`].
    fn free_range(
        self,
        sub: Range<u64>,
    ) -> Result<(Option<Self>, Option<Self>), (Self, AllocError)>;
}

/// Defines the trait with methods that have the names, arguments and results of
/// [`OffsetAllocator`]'s, and a macro that forwards each to the inherent method of the same name.
macro_rules! tested_allocator {
    ($($name:ident($($of:ident: $what:ty),*) -> $gives:ty;)*) => {
        /// An allocator of offsets.
        pub trait TestedAllocator: Sized + Clone + fmt::Debug {
            /// The type of an owned allocation.
            type Owned: OwnedRange;

            /// Whether free ranges may be in caches. In that case the reported longest free range
            /// may be too short, errors may describe only the ranges outside the caches, and most
            /// full comparisons do not include the calls that empty the caches.
            const CACHES: bool;

            $(
                #[doc = concat!("See [`OffsetAllocator::", stringify!($name), "`].")]
                fn $name(&self $(, $of: $what)*) -> $gives;
            )*
            /// Creates a space with these settings.
            fn open(config: &Config) -> Result<Self>;
            /// Returns offset, length and whether in use; free ranges may be adjacent.
            fn map(&self) -> Vec<(u64, u64, bool)>;
            /// Converts to a raw allocation; without its allocator it may stay owned.
            fn make_raw(allocator: Option<&Self>, own: Self::Owned)
            -> Result<RawHandle, Self::Owned>;
            /// Cuts the space into shards, if it is not cut.
            fn cut(&self, shards: u32);
            /// Returns the number of shards; with a boundary, each may keep free segments apart.
            fn parts(&self) -> usize {
                1
            }
            /// Returns all cached ranges to the space.
            fn trim(&self) {}
            /// Returns the number of cached ranges, and how often they were reclaimed for a
            /// request.
            fn cached(&self) -> (usize, u64) {
                (0, 0)
            }
        }

        macro_rules! common_calls {
            () => {
                $(fn $name(&self $(, $of: $what)*) -> $gives {
                    self.$name($($of),*)
                })*
            };
        }
    };
}

tested_allocator! {
    allocate(size: u64) -> Result<Self::Owned, AllocError>;
    allocate_aligned(size: u64, align: u64) -> Result<Self::Owned, AllocError>;
    allocate_batch(size: u64, n: usize) -> Result<Vec<Self::Owned>, AllocError>;
    allocate_scattered(total: u64, max_ranges: usize) -> Result<Vec<Self::Owned>, AllocError>;
    free_batch(run: Vec<Self::Owned>) -> ();
    grow_to(to: u64) -> Result<(), SpaceError>;
    shrink_to(to: u64) -> Result<(), SpaceError>;
    capacity() -> u64;
    boundary() -> Option<u64>;
    largest_free_hint() -> u64;
    metrics() -> Metrics;
    bins() -> Vec<BinReport>;
    check() -> Result<(), CheckError>;
    allocate_raw(size: u64) -> Result<RawAllocation, AllocError>;
    allocate_aligned_raw(size: u64, align: u64) -> Result<RawAllocation, AllocError>;
    free_raw(handle: RawHandle) -> Result<u64, RawError>;
    resolve_raw(handle: RawHandle) -> Result<Range<u64>, RawError>;
    shrink_raw(handle: RawHandle, new_size: u64) -> Result<(), RawError>;
    extend_raw(handle: RawHandle, new_size: u64) -> Result<(), RawError>;
    adopt_raw(handle: RawHandle) -> Result<Self::Owned, RawError>;
}

/// Implements the methods that both types have under the same names.
macro_rules! owned_range {
    ($owned:ty) => {
        impl OwnedRange for $owned {
            fn offset(&self) -> u64 {
                self.offset()
            }

            fn len(&self) -> u64 {
                self.len()
            }

            fn range(&self) -> Range<u64> {
                self.range()
            }

            fn shrink(&mut self, new_size: u64) -> Result<(), AllocError> {
                self.shrink(new_size)
            }

            fn extend(&mut self, new_size: u64) -> Result<(), AllocError> {
                self.extend(new_size)
            }

            fn free_range(
                self,
                sub: Range<u64>,
            ) -> Result<(Option<Self>, Option<Self>), (Self, AllocError)> {
                self.free_range(sub)
            }
        }
    };
}

owned_range!(Allocation);
owned_range!(Extent);

fn space_builder(config: &Config) -> kvmem::offset::OffsetAllocatorBuilder {
    let builder = OffsetAllocator::builder(config.capacity).placement(config.placement);
    let builder = config.boundary.map_or(builder.clone(), |boundary| builder.boundary(boundary));
    config.max_ranges.map_or(builder.clone(), |ranges| builder.max_ranges(ranges))
}

impl TestedAllocator for OffsetAllocator {
    type Owned = Allocation;
    const CACHES: bool = false;

    common_calls!();

    fn open(config: &Config) -> Result<Self> {
        space_builder(config).build().with_context(|| format!("{config:?}"))
    }

    fn map(&self) -> Vec<(u64, u64, bool)> {
        self.map().iter().map(|range| (range.offset, range.size, range.used)).collect()
    }

    fn make_raw(_: Option<&Self>, own: Allocation) -> Result<RawHandle, Allocation> {
        Ok(own.into_raw())
    }

    fn cut(&self, shards: u32) {
        self.cut(shards);
    }
}

impl TestedAllocator for ExtentCache {
    type Owned = Extent;
    const CACHES: bool = true;

    common_calls!();

    fn open(config: &Config) -> Result<Self> {
        let cache = config.cache.unwrap_or_default();
        let max_size =
            cache.max_cached_bytes.unwrap_or(config.capacity / 32).min(u64::from(u32::MAX) - 1);
        let hot = cache.hot.into_iter().filter(|size| (1..=max_size).contains(size));
        let builder = ExtentCache::builder(space_builder(config))
            .hot_sizes(hot)
            .auto_hot_sizes(cache.auto_hot_sizes);
        let builder =
            cache.max_cached_bytes.map_or(builder.clone(), |bytes| builder.max_cached_bytes(bytes));
        builder.build().with_context(|| format!("{config:?}"))
    }

    fn map(&self) -> Vec<(u64, u64, bool)> {
        let map = self.map();
        map.iter()
            .map(|range| (range.offset, range.size, range.state == ExtentState::Used))
            .collect()
    }

    fn make_raw(allocator: Option<&Self>, own: Extent) -> Result<RawHandle, Extent> {
        match allocator {
            Some(allocator) => allocator.make_raw(own).map(|raw| raw.handle),
            None => Err(own),
        }
    }

    fn cut(&self, shards: u32) {
        self.cut(shards);
    }

    fn trim(&self) {
        self.trim();
    }

    fn cached(&self) -> (usize, u64) {
        let stats = self.stats();
        (stats.cached_ranges, stats.reclaims)
    }
}

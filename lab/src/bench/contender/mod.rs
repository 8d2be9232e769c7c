//! Contenders: the allocators under measurement.
//!
//! Every allocator of ranges implements [`Contender`]. One loop drives all of them and is compiled
//! once for each, so no call goes through a table of pointers while the clock runs. A live range is
//! a [`RangeHandle`], as users of such an allocator hold it: dropping it frees the range.
//!
//! | name | allocator |
//! |---|---|
//! | `kvmem` | [`::kvmem::offset`], through its public interface ([`kvmem`]); with [shards](kvmem::Sharded) in the workload `shards` |
//! | `kvmem-cached` | the same below each thread's magazines, [`::kvmem::slab::ExtentCache`] ([`kvmem`]) |
//! | `binned` | the published allocator after its change: eight bins per power of two, sizes rounded up ([`binned`]) |
//! | `binned-unrounded` | the published allocator before its change: exact sizes, search from the next bin up |
//! | `offset-allocator` | the crate of that name, behind a mutex ([`crates_io`]) |
//! | `best-fit` | exact best fit over ordered maps ([`best_fit`]) |
//! | `null` | counts bytes and places nothing: the cost of the loop and of a handle ([`null`]) |

pub mod best_fit;
pub mod binned;
pub mod crates_io;
pub mod kvmem;
pub mod null;

use crate::bench::suite::names;

/// A live range of a contender's space. Dropping it frees the range.
pub trait RangeHandle {
    /// Returns the first byte of the range.
    fn offset(&self) -> u64;
    /// Returns the requested length of the range in bytes.
    fn size(&self) -> u64;
}

/// The space that a contender manages.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Bytes of the space, addressed from 0.
    pub capacity: u64,
    /// The largest number of ranges alive at once. Contenders with fixed tables size them by it.
    pub max_live: usize,
}

impl Space {
    /// Describes a space of `capacity` bytes for objects of at least `smallest` bytes.
    pub fn for_sizes_from(smallest: u64, capacity: u64) -> Self {
        let max_live =
            usize::try_from(capacity / smallest.max(1)).unwrap_or(usize::MAX).saturating_add(10);
        Self { capacity, max_live }
    }
}

/// The error of a contender that cannot manage a space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{contender} cannot manage {capacity} bytes: {reason}")]
pub struct CreateError {
    /// The contender.
    pub contender: ContenderId,
    /// The requested capacity.
    pub capacity: u64,
    /// The limit that the space exceeds.
    pub reason: String,
}

/// An allocator of ranges under measurement.
pub trait Contender: Sized {
    /// Its name in reports.
    const ID: ContenderId;
    /// A live range.
    type Handle: RangeHandle;

    /// Creates an empty allocator over `space`.
    fn create(space: Space) -> Result<Self, CreateError>;

    /// Allocates a range of `size` bytes; `None` if no free range is long enough.
    fn allocate(&self, size: u64) -> Option<Self::Handle>;

    /// Allocates between one and `max_ranges` ranges whose sizes add up to `total`, or returns
    /// `None` and changes nothing.
    fn allocate_scattered(&self, _total: u64, _max_ranges: usize) -> Option<Vec<Self::Handle>> {
        None
    }

    /// Returns the current bytes of metadata, handles excluded, if known.
    fn metadata_bytes(&self) -> Option<u64> {
        None
    }
}

names! {
    /// The contenders by name.
    pub enum ContenderId ("contender") {
        /// The library under test.
        Kvmem = "kvmem",
        /// The library under test, hot sizes cached per thread.
        KvmemCached = "kvmem-cached",
        /// The published allocator, sizes rounded up to a bin.
        Binned = "binned",
        /// The published allocator before that change.
        BinnedUnrounded = "binned-unrounded",
        /// The crate `offset-allocator`.
        OffsetAllocator = "offset-allocator",
        /// Exact best fit.
        BestFit = "best-fit",
        /// No placement: the loop alone.
        Null = "null",
    }
}

impl ContenderId {
    /// Calls `visitor` with the type that the name stands for.
    pub fn visit<V: Visitor>(self, visitor: V) -> V::Output {
        match self {
            Self::Kvmem => visitor.visit::<::kvmem::offset::OffsetAllocator>(),
            Self::KvmemCached => visitor.visit::<::kvmem::slab::ExtentCache>(),
            Self::Binned => visitor.visit::<binned::Binned>(),
            Self::BinnedUnrounded => visitor.visit::<binned::BinnedUnrounded>(),
            Self::OffsetAllocator => visitor.visit::<crates_io::CrateAllocator>(),
            Self::BestFit => visitor.visit::<best_fit::BestFit>(),
            Self::Null => visitor.visit::<null::Null>(),
        }
    }
}

/// Code that is compiled once for each contender and selected by name: see [`ContenderId::visit`].
pub trait Visitor {
    /// The result.
    type Output;
    /// Runs with the contender `C`.
    fn visit<C: Contender>(self) -> Self::Output;
}

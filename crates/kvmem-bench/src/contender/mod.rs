//! Contenders: the allocators under measurement.
//!
//! Every allocator of ranges implements [`Contender`]. One loop drives all of them and is compiled
//! once for each, so no call goes through a table of pointers while the clock runs. A live range is
//! a [`Held`] value that frees the range when it is dropped, as users of such an allocator hold it.
//!
//! | name | allocator |
//! |---|---|
//! | `kvmem` | [`::kvmem::offset`], through its public interface ([`kvmem`]) |
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

use std::fmt;
use std::str::FromStr;

/// A live range of a contender's space. Dropping it frees the range.
pub trait Held {
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
    #[must_use]
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
    /// Whether [`Contender::allocate_scattered`] is implemented.
    const SCATTERS: bool = false;
    /// A live range.
    type Handle: Held;

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

/// The contenders by name.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum ContenderId {
    /// The library under test.
    Kvmem,
    /// The library under test, hot sizes cached per thread.
    KvmemCached,
    /// The published allocator, sizes rounded up to a bin.
    Binned,
    /// The published allocator before that change.
    BinnedUnrounded,
    /// The crate `offset-allocator`.
    OffsetAllocator,
    /// Exact best fit.
    BestFit,
    /// No placement: the loop alone.
    Null,
}

impl ContenderId {
    /// All contenders, in the order in which reports list them.
    pub const ALL: [Self; 7] = [
        Self::Kvmem,
        Self::KvmemCached,
        Self::Binned,
        Self::BinnedUnrounded,
        Self::OffsetAllocator,
        Self::BestFit,
        Self::Null,
    ];

    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvmem => "kvmem",
            Self::KvmemCached => "kvmem-cached",
            Self::Binned => "binned",
            Self::BinnedUnrounded => "binned-unrounded",
            Self::OffsetAllocator => "offset-allocator",
            Self::BestFit => "best-fit",
            Self::Null => "null",
        }
    }

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

impl fmt::Display for ContenderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No contender has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown contender {0:?}: use one of kvmem, kvmem-cached, binned, binned-unrounded, \
     offset-allocator, best-fit, null"
)]
pub struct UnknownContenderError(pub String);

impl FromStr for ContenderId {
    type Err = UnknownContenderError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|id| id.name() == s)
            .ok_or_else(|| UnknownContenderError(s.to_owned()))
    }
}

/// Code that is compiled once for each contender and selected by name: see [`ContenderId::visit`].
pub trait Visitor {
    /// The result.
    type Output;
    /// Runs with the contender `C`.
    fn visit<C: Contender>(self) -> Self::Output;
}

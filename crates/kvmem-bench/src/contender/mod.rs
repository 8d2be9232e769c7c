//! Contenders: what is measured.
//!
//! Every allocator of ranges stands behind [`Contender`], so that one loop, compiled once for each
//! of them, drives them all: nothing is called through a table of pointers while the clock runs. A
//! live range is a [`Held`] value whose drop frees it, as users of such an allocator hold it.
//!
//! | name | what it is |
//! |---|---|
//! | `kvmem` | [`::kvmem::offset`], through its public face ([`kvmem`]) |
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
    /// First byte of the range.
    fn offset(&self) -> u64;
    /// Length of the range in bytes, as it was asked for.
    fn size(&self) -> u64;
}

/// What a contender is created for.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Bytes of the space, addressed from 0.
    pub capacity: u64,
    /// The most ranges that will be live at once. Contenders with fixed tables size them from it.
    pub max_live: usize,
}

impl Space {
    /// A space of `capacity` bytes for objects of at least `smallest` bytes.
    pub fn for_sizes_from(smallest: u64, capacity: u64) -> Self {
        let max_live =
            usize::try_from(capacity / smallest.max(1)).unwrap_or(usize::MAX).saturating_add(10);
        Self { capacity, max_live }
    }
}

/// Why a contender cannot serve a space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{contender} cannot manage {capacity} bytes: {reason}")]
pub struct CreateError {
    /// Who refused.
    pub contender: ContenderId,
    /// The capacity that was asked for.
    pub capacity: u64,
    /// The limit that was hit, in words.
    pub reason: String,
}

/// An allocator of ranges under measurement.
pub trait Contender: Sized {
    /// Its name in reports.
    const ID: ContenderId;
    /// Whether [`Contender::allocate_scattered`] does anything.
    const SCATTERS: bool = false;
    /// A live range.
    type Handle: Held;

    /// An empty allocator over `space`.
    fn create(space: Space) -> Result<Self, CreateError>;

    /// A range of `size` bytes, or `None` when there is no room now.
    fn allocate(&self, size: u64) -> Option<Self::Handle>;

    /// Between one and `max_ranges` ranges whose sizes add up to `total`, or `None` and nothing
    /// changed.
    fn allocate_scattered(&self, _total: u64, _max_ranges: usize) -> Option<Vec<Self::Handle>> {
        None
    }

    /// Bytes of metadata held now, the handles in their owners' hands not included, where it is
    /// known.
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
    /// The loop alone.
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

    /// The name on the command line and in JSON.
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

    /// Calls `visitor` with the type behind the name.
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

/// A name that no contender bears.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no contender is called {0:?}; there are kvmem, kvmem-cached, binned, binned-unrounded, offset-allocator, best-fit and null"
)]
pub struct UnknownContender(pub String);

impl FromStr for ContenderId {
    type Err = UnknownContender;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|id| id.name() == s)
            .ok_or_else(|| UnknownContender(s.to_owned()))
    }
}

/// Code that is compiled once for each contender and picked by name: see [`ContenderId::visit`].
pub trait Visitor {
    /// What it returns.
    type Output;
    /// Runs with the contender `C`.
    fn visit<C: Contender>(self) -> Self::Output;
}

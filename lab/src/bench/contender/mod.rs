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

use anyhow::Result;

use crate::bench::suite::names;

/// A live range of a contender's space. Dropping it frees the range.
pub trait RangeHandle {
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

/// An allocator of ranges under measurement.
pub trait Contender: Sized {
    /// A live range.
    type Handle: RangeHandle;

    /// Creates an empty allocator over `space`.
    fn create(space: Space) -> Result<Self>;

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
        Kvmem = "kvmem",
        KvmemCached = "kvmem-cached",
        Binned = "binned",
        BinnedUnrounded = "binned-unrounded",
        OffsetAllocator = "offset-allocator",
        BestFit = "best-fit",
        Null = "null",
    }
}

/// Evaluates an expression with the type that a [`ContenderId`] stands for: it is compiled once for
/// each contender.
macro_rules! with_contender {
    ($id:expr, $type:ident => $body:expr) => {
        $crate::bench::contender::with_contender!(@ $id, $type => $body;
            Kvmem: ::kvmem::offset::OffsetAllocator, KvmemCached: ::kvmem::slab::ExtentCache,
            Binned: $crate::bench::contender::binned::Binned,
            BinnedUnrounded: $crate::bench::contender::binned::BinnedUnrounded,
            OffsetAllocator: $crate::bench::contender::crates_io::CrateAllocator,
            BestFit: $crate::bench::contender::best_fit::BestFit,
            Null: $crate::bench::contender::null::Null)
    };
    (@ $id:expr, $type:ident => $body:expr; $($name:ident: $contender:ty),+) => {
        match $id {
            $($crate::bench::contender::ContenderId::$name => {
                type $type = $contender;
                $body
            })+
        }
    };
}

pub(crate) use with_contender;

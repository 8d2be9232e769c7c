//! A space that is cut into shards, as the driver tests it.
//!
//! A cut must not be noticed: such a space is compared with the same oracle. It is cut when it is
//! created, or in the middle of the test.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use kvmem::offset::{
    AllocError, BinReport, CheckError, Metrics, RawAllocation, RawError, RawHandle, SpaceError,
};

use super::tested_allocator::TestedAllocator;
use crate::op::Config;

/// The most shards of a space.
const MAX_SHARDS: u64 = 9;
/// The most requests before the cut.
const MAX_REQUESTS: u64 = 40;

/// A space that is cut into shards.
#[derive(Clone, Debug)]
pub struct Sharded<A> {
    space: A,
    shards: u32,
    /// Requests until the cut.
    wait: Arc<AtomicU64>,
}

impl<A: TestedAllocator> Sharded<A> {
    /// Counts a request, and cuts the space if it is due.
    fn cutting(&self) -> &A {
        // Relaxed: any request may be the one that is due.
        if self.wait.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.space.cut(self.shards);
        }
        &self.space
    }
}

/// Forwards each method to that of the space.
macro_rules! forward {
    ($by:ident: $($name:ident($($of:ident: $what:ty),*) -> $gives:ty;)*) => {
        $(fn $name(&self $(, $of: $what)*) -> $gives {
            self.$by().$name($($of),*)
        })*
    };
}

impl<A> Sharded<A> {
    fn as_it_is(&self) -> &A {
        &self.space
    }
}

impl<A: TestedAllocator> TestedAllocator for Sharded<A> {
    type Owned = A::Owned;
    const CACHES: bool = A::CACHES;

    forward! { cutting:
        allocate(size: u64) -> Result<A::Owned, AllocError>;
        allocate_aligned(size: u64, align: u64) -> Result<A::Owned, AllocError>;
        allocate_batch(size: u64, n: usize) -> Result<Vec<A::Owned>, AllocError>;
        allocate_scattered(total: u64, max_ranges: usize) -> Result<Vec<A::Owned>, AllocError>;
        allocate_raw(size: u64) -> Result<RawAllocation, AllocError>;
        allocate_aligned_raw(size: u64, align: u64) -> Result<RawAllocation, AllocError>;
    }

    forward! { as_it_is:
        free_batch(run: Vec<A::Owned>) -> ();
        grow_to(to: u64) -> Result<(), SpaceError>;
        shrink_to(to: u64) -> Result<(), SpaceError>;
        capacity() -> u64;
        boundary() -> Option<u64>;
        largest_free_hint() -> u64;
        metrics() -> Metrics;
        bins() -> Vec<BinReport>;
        check() -> Result<(), CheckError>;
        free_raw(handle: RawHandle) -> Result<u64, RawError>;
        resolve_raw(handle: RawHandle) -> Result<Range<u64>, RawError>;
        shrink_raw(handle: RawHandle, new_size: u64) -> Result<(), RawError>;
        extend_raw(handle: RawHandle, new_size: u64) -> Result<(), RawError>;
        adopt_raw(handle: RawHandle) -> Result<A::Owned, RawError>;
        map() -> Vec<(u64, u64, bool)>;
        trim() -> ();
        cached() -> (usize, u64);
        cut(shards: u32) -> ();
    }

    fn open(config: &Config) -> Result<Self> {
        let shards = 2 + (config.capacity % (MAX_SHARDS - 1)) as u32;
        let wait = Arc::new(AtomicU64::new(config.capacity / 7 % MAX_REQUESTS));
        Ok(Sharded { space: A::open(config)?, shards, wait })
    }

    fn make_raw(allocator: Option<&Self>, own: A::Owned) -> Result<RawHandle, A::Owned> {
        A::make_raw(allocator.map(Self::as_it_is), own)
    }

    fn parts(&self) -> usize {
        if self.boundary().is_some() { self.shards as usize } else { 1 }
    }
}

//! The contenders that the suite of one thread has not: the library behind another mutex, and no
//! allocator at all.

use std::hint::black_box;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use kvmem::offset::{Allocation, OffsetAllocator};

use crate::bench::contender::{Contender, RangeHandle, Space};
use crate::bench::lock::lock;

/// The library's allocator behind a mutex that one thread at a time may hold. The allocator's own
/// lock is then never contended, and its hint, which fails hopeless requests without a lock, is
/// behind the mutex.
pub(in crate::bench) struct MutexAllocator(Arc<Mutex<OffsetAllocator>>);

/// A range of a [`MutexAllocator`], also freed under the mutex.
pub(in crate::bench) struct MutexHandle {
    owner: Arc<Mutex<OffsetAllocator>>,
    range: Option<Allocation>,
}

impl RangeHandle for MutexHandle {
    fn size(&self) -> u64 {
        self.range.as_ref().map_or(0, Allocation::len)
    }
}

impl Drop for MutexHandle {
    #[inline]
    fn drop(&mut self) {
        let _guard = lock(&self.owner);
        self.range = None;
    }
}

impl Contender for MutexAllocator {
    type Handle = MutexHandle;

    fn create(space: Space) -> Result<Self> {
        Ok(Self(Arc::new(Mutex::new(<OffsetAllocator as Contender>::create(space)?))))
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<MutexHandle> {
        let heap = lock(&self.0);
        let range = heap.allocate(size).ok()?;
        drop(heap);
        Some(MutexHandle { owner: Arc::clone(&self.0), range: Some(range) })
    }
}

/// No allocator: it has no metadata, fails the requests that must fail, and serves all others.
pub(in crate::bench) struct NoAllocator {
    capacity: u64,
}

/// A size, in a handle as large as the library's.
pub(in crate::bench) struct SizeHandle {
    size: [u32; 5],
}

impl RangeHandle for SizeHandle {
    fn size(&self) -> u64 {
        self.size[0].into()
    }
}

impl Drop for SizeHandle {
    #[inline]
    fn drop(&mut self) {
        // Makes the drop read the handle, as all other drops do.
        black_box(self.size[0]);
    }
}

impl Contender for NoAllocator {
    type Handle = SizeHandle;

    fn create(space: Space) -> Result<Self> {
        Ok(Self { capacity: space.capacity })
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<SizeHandle> {
        // All requests that must fail are at least that long, all others far shorter.
        let quarter = black_box(self.capacity) / 4;
        (size < quarter).then(|| SizeHandle { size: [size as u32; 5] })
    }
}

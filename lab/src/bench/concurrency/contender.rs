//! Allocators of offsets that threads can share.

use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};

use kvmem::offset::{Allocation, OffsetAllocator};
use kvmem::slab::ExtentCache;

use super::ConcurrencyContenderId;
use crate::bench::contender::binned::Binned;
use crate::bench::contender::kvmem::Sharded;
use crate::bench::contender::{Contender, CreateError, Space};

/// An allocator that threads share. Dropping a handle frees its range.
pub(super) trait SharedAllocator: Sync + Sized {
    /// A live range.
    type Handle: Send;

    /// Creates an empty allocator over `space`.
    fn create(space: Space) -> Result<Self, CreateError>;

    /// Allocates a range of `size` bytes; `None` if no free range is long enough.
    fn allocate(&self, size: u64) -> Option<Self::Handle>;
}

/// A contender of the offset suite, shared without changes.
pub(super) struct Unchanged<C>(C);

impl<C: Contender<Handle: Send> + Sync> SharedAllocator for Unchanged<C> {
    type Handle = C::Handle;

    fn create(space: Space) -> Result<Self, CreateError> {
        C::create(space).map(Self)
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<C::Handle> {
        self.0.allocate(size)
    }
}

/// The library's allocator behind a mutex that one thread at a time may hold. The allocator's own
/// lock is then never contended, and its hint, which fails hopeless requests without a lock, is
/// behind the mutex.
pub(super) struct MutexAllocator(Arc<Mutex<OffsetAllocator>>);

/// A range of a [`MutexAllocator`], also freed under the mutex.
pub(super) struct MutexHandle {
    owner: Arc<Mutex<OffsetAllocator>>,
    range: Option<Allocation>,
}

impl Drop for MutexHandle {
    #[inline]
    fn drop(&mut self) {
        let _guard = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        self.range = None;
    }
}

impl SharedAllocator for MutexAllocator {
    type Handle = MutexHandle;

    fn create(space: Space) -> Result<Self, CreateError> {
        <OffsetAllocator as Contender>::create(space).map(|heap| Self(Arc::new(Mutex::new(heap))))
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<MutexHandle> {
        let heap = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let range = heap.allocate(size).ok()?;
        drop(heap);
        Some(MutexHandle { owner: Arc::clone(&self.0), range: Some(range) })
    }
}

/// No allocator: it keeps no metadata, fails the requests that must fail, and serves all others.
pub(super) struct NoAllocator {
    capacity: u64,
}

/// A size, in a handle as large as the library's.
pub(super) struct SizeHandle {
    size: [u32; 5],
}

impl Drop for SizeHandle {
    #[inline]
    fn drop(&mut self) {
        // Makes the drop read the handle, as all other drops do.
        black_box(self.size[0]);
    }
}

impl SharedAllocator for NoAllocator {
    type Handle = SizeHandle;

    fn create(space: Space) -> Result<Self, CreateError> {
        Ok(Self { capacity: space.capacity })
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<SizeHandle> {
        // All requests that must fail are at least that long, all others far shorter.
        let quarter = black_box(self.capacity) / 4;
        (size < quarter).then(|| SizeHandle { size: [size as u32; 5] })
    }
}

/// Code that is compiled once for each contender and selected by name.
pub(super) trait SharedVisitor {
    /// The result.
    type Output;
    /// Runs with the contender `C`.
    fn visit<C: SharedAllocator>(self) -> Self::Output;
}

/// Calls `visitor` with the type that the name stands for.
pub(super) fn visit<V: SharedVisitor>(id: ConcurrencyContenderId, visitor: V) -> V::Output {
    match id {
        ConcurrencyContenderId::Kvmem => visitor.visit::<Unchanged<OffsetAllocator>>(),
        ConcurrencyContenderId::KvmemCached => visitor.visit::<Unchanged<ExtentCache>>(),
        ConcurrencyContenderId::Binned => visitor.visit::<Unchanged<Binned>>(),
        ConcurrencyContenderId::Mutex => visitor.visit::<MutexAllocator>(),
        ConcurrencyContenderId::Null => visitor.visit::<NoAllocator>(),
        ConcurrencyContenderId::KvmemShards => visitor.visit::<Unchanged<Sharded<8>>>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct FreesOnAnotherThread;
    impl SharedVisitor for FreesOnAnotherThread {
        type Output = ();

        fn visit<C: SharedAllocator>(self) {
            let space = C::create(Space { capacity: 1 << 20, max_live: 64 }).unwrap();
            // Eighths, each as long as a shard.
            let all = || (0..8).map(|_| space.allocate(1 << 17).unwrap()).collect::<Vec<_>>();
            let first = all();
            assert!(space.allocate(1 << 17).is_none());
            std::thread::scope(|scope| scope.spawn(move || drop(first)).join().unwrap());
            assert_eq!(all().len(), 8);
        }
    }

    #[test]
    fn ranges_may_be_freed_by_any_thread() {
        // `null` does not count free bytes.
        for id in
            ConcurrencyContenderId::ALL.into_iter().filter(|id| *id != ConcurrencyContenderId::Null)
        {
            visit(id, FreesOnAnotherThread);
        }
    }
}

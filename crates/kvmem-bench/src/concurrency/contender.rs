//! *Contender*: allocators of offsets that threads can share.

use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};

use kvmem::offset::{Allocation, OffsetAllocator};
use kvmem::slab::ExtentCache;

use super::ContenderId;
use crate::contender::binned::Binned;
use crate::contender::{Contender, CreateError, Space};

/// An allocator that threads share. Dropping a handle frees its range.
pub(super) trait Shared: Sync + Sized {
    /// A live range.
    type Handle: Send;

    /// An empty allocator over `space`.
    fn create(space: Space) -> Result<Self, CreateError>;

    /// A range of `size` bytes, or `None` when there is no room now.
    fn allocate(&self, size: u64) -> Option<Self::Handle>;
}

/// A contender of the offset suite, which runs here as it is.
pub(super) struct AsItIs<C>(C);

impl<C: Contender<Handle: Send> + Sync> Shared for AsItIs<C> {
    type Handle = C::Handle;

    fn create(space: Space) -> Result<Self, CreateError> {
        C::create(space).map(Self)
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<C::Handle> {
        self.0.allocate(size)
    }
}

/// The library's allocator, which only one thread at a time may enter. Its own lock then is never
/// contended, and its hint, which answers hopeless requests without a lock, is behind this one.
pub(super) struct Locked(Arc<Mutex<OffsetAllocator>>);

/// A range of it, which is freed under the lock as well.
pub(super) struct LockedHandle {
    owner: Arc<Mutex<OffsetAllocator>>,
    range: Option<Allocation>,
}

impl Drop for LockedHandle {
    #[inline]
    fn drop(&mut self) {
        let _guard = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        self.range = None;
    }
}

impl Shared for Locked {
    type Handle = LockedHandle;

    fn create(space: Space) -> Result<Self, CreateError> {
        <OffsetAllocator as Contender>::create(space).map(|heap| Self(Arc::new(Mutex::new(heap))))
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<LockedHandle> {
        let heap = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let range = heap.allocate(size).ok()?;
        drop(heap);
        Some(LockedHandle { owner: Arc::clone(&self.0), range: Some(range) })
    }
}

/// What keeps no books: it refuses what the scenarios know to be refused, and grants all else.
pub(super) struct Null {
    capacity: u64,
}

/// A granted size, as large as the library's handle.
pub(super) struct NullHandle {
    size: [u32; 5],
}

impl Drop for NullHandle {
    #[inline]
    fn drop(&mut self) {
        // So that dropping reads the handle, as all others do.
        black_box(self.size[0]);
    }
}

impl Shared for Null {
    type Handle = NullHandle;

    fn create(space: Space) -> Result<Self, CreateError> {
        Ok(Self { capacity: space.capacity })
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<NullHandle> {
        let half = black_box(self.capacity) / 2;
        (size < half).then(|| NullHandle { size: [size as u32; 5] })
    }
}

/// Code that is compiled once for each contender and picked by name.
pub(super) trait Visitor {
    /// What it returns.
    type Output;
    /// Runs with the contender `C`.
    fn visit<C: Shared>(self) -> Self::Output;
}

/// Calls `visitor` with the type behind the name.
pub(super) fn visit<V: Visitor>(id: ContenderId, visitor: V) -> V::Output {
    match id {
        ContenderId::Kvmem => visitor.visit::<AsItIs<OffsetAllocator>>(),
        ContenderId::KvmemCached => visitor.visit::<AsItIs<ExtentCache>>(),
        ContenderId::Binned => visitor.visit::<AsItIs<Binned>>(),
        ContenderId::Mutex => visitor.visit::<Locked>(),
        ContenderId::Null => visitor.visit::<Null>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct FreesFromElsewhere;
    impl Visitor for FreesFromElsewhere {
        type Output = ();

        fn visit<C: Shared>(self) {
            let space = C::create(Space { capacity: 1 << 20, max_live: 64 }).unwrap();
            let half = space.allocate(1 << 19).unwrap();
            assert!(space.allocate(1 << 20).is_none());
            std::thread::scope(|scope| scope.spawn(move || drop(half)).join().unwrap());
            assert!(space.allocate(1 << 20).is_some());
        }
    }

    #[test]
    fn ranges_may_be_freed_by_any_thread() {
        // `null` knows of no room.
        for id in ContenderId::ALL.into_iter().filter(|id| *id != ContenderId::Null) {
            visit(id, FreesFromElsewhere);
        }
    }
}

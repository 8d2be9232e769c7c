//! *Object store*: the memory of objects, below the magazines that hold constructed ones.

use std::alloc::{GlobalAlloc, Layout, System};
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::slab::magazine::RoundSource;
use crate::slab::slabs::{Chunk, Slabs};
use crate::sync::{AtomicUsize, Ordering};

/// Where the memory of objects comes from.
pub(super) enum ObjectMemory {
    /// Slabs of a single class.
    Slabs(Slabs),
    /// The system's allocator, for objects too large or too strictly aligned for slabs; and the
    /// number of these objects.
    System(Layout, AtomicUsize),
}

/// Provides the memory for objects; the magazines above it hold constructed objects.
pub(super) struct ObjectStore<T> {
    pub(super) memory: ObjectMemory,
    of: PhantomData<fn() -> T>,
}

impl ObjectMemory {
    /// The system's allocator, for objects of type `T`.
    pub(super) fn system<T>() -> ObjectMemory {
        // Memory of no bytes cannot be allocated; an object without size gets one byte.
        let whole = Layout::new::<T>();
        let layout = if whole.size() == 0 { Layout::new::<(T, u8)>() } else { whole };
        ObjectMemory::System(layout, AtomicUsize::new(0))
    }
}

impl<T> ObjectStore<T> {
    pub(super) fn new(memory: ObjectMemory) -> ObjectStore<T> {
        ObjectStore { memory, of: PhantomData }
    }

    /// Allocates uninitialized memory for one object.
    pub(super) fn take(&self) -> Option<NonNull<T>> {
        match &self.memory {
            ObjectMemory::Slabs(slabs) => slabs.take_one(0).map(|chunk| chunk.at().cast()),
            ObjectMemory::System(layout, live) => {
                // SAFETY: the layout is not empty: `ObjectMemory::system` makes it so.
                let at = NonNull::new(unsafe { System.alloc(*layout) })?;
                // Relaxed: a statistic.
                live.fetch_add(1, Ordering::Relaxed);
                Some(at.cast())
            }
        }
    }

    /// Frees the memory of one object, which holds no value any more.
    ///
    /// # Safety
    ///
    /// The memory came from [`take`](Self::take) of this store, and no code uses it any more.
    pub(super) unsafe fn give(&self, at: NonNull<T>) {
        match &self.memory {
            // SAFETY: the caller promises that `take` returned the memory, so it is an object of
            // the only class, and that no code uses it any more.
            ObjectMemory::Slabs(slabs) => slabs.give_one(0, unsafe { Chunk::new(at.cast()) }),
            ObjectMemory::System(layout, live) => {
                // SAFETY: the caller promises that `take` returned the memory, which allocated it
                // with this layout, and that no code uses it any more.
                unsafe { System.dealloc(at.cast().as_ptr(), *layout) };
                // Relaxed: a statistic.
                live.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// Frees the memory of an object when it is dropped, even by a panic of the user's code.
pub(super) struct FreeOnDrop<'a, T>(&'a ObjectStore<T>, NonNull<T>);

impl<'a, T> FreeOnDrop<'a, T> {
    /// # Safety
    ///
    /// The memory came from [`ObjectStore::take`] of this store. When the value is dropped, the
    /// memory holds no value, and no code uses it afterwards.
    pub(super) unsafe fn new(store: &'a ObjectStore<T>, at: NonNull<T>) -> Self {
        FreeOnDrop(store, at)
    }
}

impl<T> Drop for FreeOnDrop<'_, T> {
    fn drop(&mut self) {
        // SAFETY: `new` required what `give` requires.
        unsafe { self.0.give(self.1) };
    }
}

impl<T> ObjectStore<T> {
    /// Drops the value and frees its memory.
    ///
    /// # Safety
    ///
    /// `at` came from [`take`](Self::take) of this store and holds a value that no code uses any
    /// more.
    pub(super) unsafe fn destroy(&self, at: NonNull<T>) {
        // SAFETY: the caller promises that `take` returned the memory and that no code uses it. The
        // value ends below, even if its destructor panics.
        let _back = unsafe { FreeOnDrop::new(self, at) };
        // SAFETY: the caller promises that the memory holds a value that no code uses.
        unsafe { at.drop_in_place() };
    }
}

impl<T: Send + 'static> RoundSource<Chunk> for ObjectStore<T> {
    /// Does nothing: objects are constructed one by one, on request.
    fn refill(&self, _: usize, _: usize, _: &mut Vec<Chunk>) {}

    fn drain(&self, _: usize, rounds: &mut Vec<Chunk>) {
        for chunk in rounds.drain(..) {
            // SAFETY: `Chunk::new` required that the memory came from this store, holds a value,
            // and has no user; the chunk has left the magazines.
            unsafe { self.destroy(chunk.at().cast()) };
        }
    }

    /// Returns `None`: objects are constructed one by one, on request.
    fn refill_one(&self, _: usize) -> Option<Chunk> {
        None
    }

    fn drain_one(&self, _: usize, chunk: Chunk) {
        // SAFETY: as in `drain`.
        unsafe { self.destroy(chunk.at().cast()) };
    }

    fn prefork(&self) {
        if let ObjectMemory::Slabs(slabs) = &self.memory {
            slabs.prefork();
        }
    }

    fn postfork(&self) {
        if let ObjectMemory::Slabs(slabs) = &self.memory {
            slabs.postfork();
        }
    }

    fn round_bytes(&self, _: usize) -> usize {
        match &self.memory {
            ObjectMemory::Slabs(slabs) => slabs.geometry(0).size,
            ObjectMemory::System(layout, _) => layout.size(),
        }
    }
}

//! *Bump arena*: hands out the bytes of one memory from the first to the last and frees none of
//! them alone.
//!
//! ```text
//!   base                          cursor                                  limit
//!    │ handed out, with padding     │ padding │ the next request │ ...      │
//!    ├──────────────────────────────┼─────────┼──────────────────┼──────────┤
//!                                             └ this address is a multiple of the alignment
//! ```
//!
//! The cursor is the only state of an arena whose threads do not collide (see `cursor.rs`). Threads
//! that do get chunks of their own (see `lanes.rs`). All other fields lie on other cache lines,
//! where the exchanges of other threads do not disturb them. The statistics are read from cursor
//! and lanes, so they always add up to the capacity and cost the allocations nothing. The arena
//! does not count its allocations: a counter would be a second atomic operation for each of them. A
//! caller that needs this number counts its own calls.
//!
//! Alignment applies to the *address*. If the memory begins at a multiple of 4096 and a request
//! asks for an alignment of 2 MiB, the offset of the result is in general not a multiple of 2 MiB.
//!
//! Two interfaces hand out the same bytes. The raw one returns pointers; its callers keep track of
//! which thread uses which bytes. The safe one exists where no other code can reach the memory; its
//! slices borrow the arena. [`BumpArena::reset`] borrows the arena exclusively, so the compiler
//! rejects a reset while such a slice lives.

use std::alloc::Layout;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

use super::cursor::Cursor;
use super::error::BumpError;
use super::lanes::BumpLanes;
use super::memory::{Exclusive, Memory};
use crate::sync::{AtomicUsize, Ordering};

/// A lock-free allocator that hands out the bytes of `M` by moving a cursor. Any number of threads
/// share it by reference.
///
/// An allocation is one atomic read-modify-write, repeated only if another thread's exchange came
/// in between. A failed allocation is one load and writes nothing. Neither logs anything.
///
/// Threads that often collide at the cursor of an arena of at least 16 MiB get *chunks* of it, at
/// most 1 MiB each, and all together at most one part in 128 of the arena. Requests that are at
/// most a sixteenth of a chunk are then served from the chunk of their thread. From that moment
/// until the next reset:
///
/// - Addresses ascend within a chunk, and not from one allocation of the arena to the next.
/// - The end of a chunk that is too short for a request is skipped and counts as used: less than a
///   sixteenth of the chunk. Equal requests of a power of two, with no larger alignment, skip
///   nothing.
/// - A request that the remaining bytes behind the cursor cannot serve is served from any thread's
///   chunk. No request fails because of another thread's chunk, except that a request which is
///   longer than a chunk cannot use what is left in chunks, and that a thread in the middle of
///   taking a chunk holds it.
///
/// ```
/// use std::mem::MaybeUninit;
///
/// use kvmem::arena::{BumpArena, BumpError, HeapMemory};
///
/// let mut arena = BumpArena::new(HeapMemory::new(1 << 20, 4096)?);
///
/// // Eight threads, each with its own piece.
/// std::thread::scope(|scope| {
///     for byte in 0..8 {
///         let arena = &arena;
///         scope.spawn(move || {
///             let piece = arena.allocate_uninit(100_000, 64).expect("there is room for eight");
///             assert_eq!(piece.as_ptr().addr() % 64, 0);
///             piece.fill(MaybeUninit::new(byte));
///         });
///     }
/// });
/// assert!(arena.stats().used >= 800_000);
///
/// // A request that does not fit returns an error value.
/// let full = arena.allocate_bytes(1 << 20, 1).expect_err("most of it is used");
/// let BumpError::Full { requested, remaining } = full else { panic!("{full}") };
/// assert!(requested == 1 << 20 && remaining <= 248_576);
///
/// // Nothing is borrowed any more: the whole memory can be handed out again.
/// arena.reset();
/// assert_eq!(arena.stats().remaining, 1 << 20);
/// # Ok::<(), BumpError>(())
/// ```
///
/// Drawback: no allocation can be freed alone. For that, use [`offset`](crate::offset).
pub struct BumpArena<M: Memory> {
    cursor: Cursor,
    lanes: BumpLanes,
    base: NonNull<u8>,
    /// One past the last byte. Never less than the cursor.
    limit: usize,
    /// The greatest number, or 0 while threads use the lanes: one comparison with it tells the
    /// usual request from one of no bytes and from one of a crowded arena. Changes once between two
    /// resets.
    direct: AtomicUsize,
    memory: M,
}

// SAFETY: `M` may go to other threads, and its base address with it. The arena itself hands out
// addresses by an atomic exchange, and slices only of memory that any thread may use (`Exclusive`,
// condition 1).
unsafe impl<M: Memory> Send for BumpArena<M> {}
// SAFETY: a shared arena does no more than an owned one: see `Send`.
unsafe impl<M: Memory> Sync for BumpArena<M> {}

crate::stats! {
    /// Bytes that an arena has allocated. `used + remaining == capacity`.
    pub struct BumpStats: Clone Copy Debug PartialEq Eq {
        /// Length of the memory in bytes.
        capacity: usize,
        /// Bytes allocated since the arena was made or last reset, including the padding before
        /// them and the skipped ends of chunks.
        used: usize,
        /// Bytes that remain, those in chunks of threads included.
        remaining: usize,
    }
}

impl<M: Memory> BumpArena<M> {
    /// Makes an arena over `memory`; all of it is free. O(1); the bytes are not touched.
    #[must_use]
    pub fn new(memory: M) -> Self {
        let base = memory.base();
        let start = base.addr().get();
        // `Memory`, condition 2, excludes an overflow.
        let limit = start + memory.len();
        BumpArena {
            cursor: Cursor::new(start),
            lanes: BumpLanes::new(memory.len(), limit),
            base,
            limit,
            direct: AtomicUsize::new(usize::MAX),
            memory,
        }
    }

    /// Allocates `layout.size()` bytes at a multiple of `layout.align()`; the slice has exactly the
    /// requested length. Lock-free: one atomic read-modify-write.
    ///
    /// The bytes have the contents that the memory had at the start or that earlier users left
    /// before a reset. The caller may use them until the arena is reset, dropped or taken apart,
    /// and has to ensure that no use comes later.
    ///
    /// # Errors
    ///
    /// [`BumpError::Zero`] for a size of 0 and [`BumpError::Full`] if the request does not fit.
    /// Either costs no more than a load.
    ///
    /// ```
    /// # use kvmem::arena::{BumpArena, BumpError, HeapMemory};
    /// use std::alloc::Layout;
    ///
    /// let arena = BumpArena::new(HeapMemory::new(1 << 16, 64)?);
    /// let table = arena.allocate(Layout::new::<[u64; 100]>())?;
    /// assert_eq!((table.len(), table.cast::<u64>().is_aligned()), (800, true));
    /// # Ok::<(), kvmem::arena::BumpError>(())
    /// ```
    #[inline]
    pub fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, BumpError> {
        let (size, mask) = (layout.size(), layout.align() - 1);
        // Relaxed: a hint. The lanes are as old as the arena.
        let taken = if size.wrapping_sub(1) < self.direct.load(Ordering::Relaxed) {
            self.cursor.take(size, mask, |at| self.limit - at, |_| 0, || self.open_lanes())
        } else if size == 0 {
            return Err(BumpError::Zero);
        } else {
            self.lanes.take(&self.cursor, size, mask)
        };
        match taken {
            Ok(start) => Ok(self.bytes(start, size)),
            Err(remaining) => Err(BumpError::Full { requested: size, remaining }),
        }
    }

    /// Lets the threads use the lanes, if the arena is large enough for chunks.
    #[cold]
    fn open_lanes(&self) {
        if self.lanes.exist() {
            // Relaxed: a hint.
            self.direct.store(0, Ordering::Relaxed);
        }
    }

    /// Allocates `size` bytes at a multiple of `align`, like [`allocate`](Self::allocate) for
    /// callers that have two numbers and no `Layout`.
    ///
    /// # Errors
    ///
    /// [`BumpError::Zero`] for a size of 0, [`BumpError::BadAlign`] if `align` is not a power of
    /// two, [`BumpError::Overflow`] if no object can be that large, and [`BumpError::Full`] if the
    /// request does not fit.
    ///
    /// ```
    /// # use kvmem::arena::{BumpArena, BumpError, HeapMemory};
    /// let arena = BumpArena::new(HeapMemory::new(1 << 16, 64)?);
    /// let page = arena.allocate_bytes(100, 4096)?.cast::<u8>();
    /// assert_eq!(page.addr().get() % 4096, 0);
    /// // SAFETY: these 100 bytes belong to this caller alone, and the arena is not reset
    /// // meanwhile.
    /// unsafe { page.write_bytes(7, 100) };
    /// # Ok::<(), kvmem::arena::BumpError>(())
    /// ```
    #[inline]
    pub fn allocate_bytes(&self, size: usize, align: usize) -> Result<NonNull<[u8]>, BumpError> {
        self.allocate(BumpError::layout(size, align)?)
    }

    /// Returns whether the address lies in this arena's memory, handed out or not. Reads constants
    /// only.
    ///
    /// ```
    /// # use kvmem::arena::{BumpArena, BumpError, HeapMemory};
    /// let arena = BumpArena::new(HeapMemory::new(1 << 16, 64)?);
    /// assert!(arena.owns(arena.allocate_bytes(1, 1)?.as_ptr().cast()));
    /// assert!(!arena.owns(&0));
    /// # Ok::<(), kvmem::arena::BumpError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn owns(&self, address: *const u8) -> bool {
        (self.base.addr().get()..self.limit).contains(&address.addr())
    }

    /// Returns whether the address lies in bytes that have been handed out, padding included.
    pub(in crate::arena) fn has_handed_out(&self, address: *const u8) -> bool {
        let address = address.addr();
        (self.base.addr().get()..self.cursor.at()).contains(&address)
            && !self.rests().any(|rest| rest.contains(&address))
    }

    /// Returns the ranges of addresses that threads hold in chunks.
    fn rests(&self) -> impl Iterator<Item = Range<usize>> {
        // Relaxed: a thread that has used a chunk, or has an address from one, sees it set.
        let is_crowded = self.direct.load(Ordering::Relaxed) == 0;
        is_crowded.then(|| self.lanes.rests()).into_iter().flatten()
    }

    /// Returns the used and remaining bytes. They include every allocation that happened before
    /// this call on this thread. A chunk that another thread is taking counts as used. O(1).
    ///
    /// ```
    /// # use kvmem::arena::{BumpArena, BumpError, HeapMemory};
    /// let arena = BumpArena::new(HeapMemory::new(1000, 64)?);
    /// arena.allocate_bytes(300, 1)?;
    /// assert_eq!(arena.stats().remaining, 700);
    /// # Ok::<(), kvmem::arena::BumpError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn stats(&self) -> BumpStats {
        // The lanes first: a chunk that they have is behind the cursor by the time that is read.
        let rests = self.rests().map(|rest| rest.len()).sum::<usize>();
        let remaining = rests + (self.limit - self.cursor.at());
        BumpStats { capacity: self.capacity(), used: self.capacity() - remaining, remaining }
    }

    /// Returns the size of the memory in bytes.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.limit - self.base.addr().get()
    }

    /// Returns the address of the first byte of the memory.
    #[inline]
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Makes the whole memory available again. O(1); the bytes keep their contents.
    ///
    /// The compiler ensures that no slice from [`allocate_uninit`](Self::allocate_uninit) is still
    /// borrowed. Pointers from [`allocate`](Self::allocate) and
    /// [`allocate_bytes`](Self::allocate_bytes) must not be used any more: their bytes will be
    /// handed out again.
    ///
    /// ```
    /// # use kvmem::arena::{BumpArena, BumpError, HeapMemory};
    /// let mut arena = BumpArena::new(HeapMemory::new(1000, 64)?);
    /// let first = arena.allocate_bytes(1000, 1)?;
    /// arena.reset();
    /// assert_eq!(arena.allocate_bytes(1000, 1)?, first);
    /// # Ok::<(), kvmem::arena::BumpError>(())
    /// ```
    pub fn reset(&mut self) {
        self.cursor.set(self.base.addr().get());
        self.lanes.reset();
        // Relaxed: the exclusive borrow excludes all other threads.
        self.direct.store(usize::MAX, Ordering::Relaxed);
    }

    /// Takes the arena apart and returns its memory. Pointers that it handed out must not be used
    /// any more, unless the memory's own documentation allows it.
    ///
    /// ```
    /// # use kvmem::arena::{BumpArena, BumpError, HeapMemory};
    /// use kvmem::arena::Memory;
    ///
    /// let arena = BumpArena::new(HeapMemory::new(1000, 64)?);
    /// assert_eq!(arena.into_memory().len(), 1000);
    /// # Ok::<(), kvmem::arena::BumpError>(())
    /// ```
    #[must_use]
    pub fn into_memory(self) -> M {
        self.memory
    }

    /// Returns the range `[start, start + size)`, which the cursor has just passed.
    #[inline]
    fn bytes(&self, start: usize, size: usize) -> NonNull<[u8]> {
        let offset = start - self.base.addr().get();
        // SAFETY: `start` is between base and limit, so the offset is within the memory, which is
        // one allocation.
        let first = unsafe { self.base.add(offset) };
        NonNull::slice_from_raw_parts(first, size)
    }
}

impl<M: Exclusive> BumpArena<M> {
    /// Allocates `size` bytes at a multiple of `align` and returns them as a slice that borrows the
    /// arena. The slice can outlive neither the arena nor a reset.
    ///
    /// ```compile_fail
    /// # use kvmem::arena::{BumpArena, HeapMemory};
    /// let mut arena = BumpArena::new(HeapMemory::new(1024, 64).unwrap());
    /// let piece = arena.allocate_uninit(10, 1).unwrap();
    /// arena.reset();
    /// piece.fill(std::mem::MaybeUninit::new(0)); // error: `arena` is still borrowed
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`allocate_bytes`](Self::allocate_bytes).
    #[inline]
    // No two calls return the same bytes.
    #[allow(clippy::mut_from_ref)]
    pub fn allocate_uninit(
        &self,
        size: usize,
        align: usize,
    ) -> Result<&mut [MaybeUninit<u8>], BumpError> {
        let bytes = self.allocate_bytes(size, align)?;
        // SAFETY: the bytes are within the memory, which is readable, writable and stays until
        // `self` is dropped (`Exclusive`, condition 1, and `Memory`, condition 3). `MaybeUninit`
        // requires nothing of their contents. No other call has them: the cursor has passed them
        // and moves back only in `reset`, which no borrow of `self` survives. No other code reaches
        // them around the arena (`Exclusive`, condition 2).
        Ok(unsafe { slice::from_raw_parts_mut(bytes.as_ptr().cast(), bytes.len()) })
    }
}

impl<M: Memory> fmt::Debug for BumpArena<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BumpArena")
            .field("base", &self.base)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::arena::HeapMemory;

    /// The cursor, which every allocation writes, shares no cache line with the fields that every
    /// allocation reads.
    #[test]
    fn constants_stand_apart_from_the_cursor() {
        type Arena = BumpArena<HeapMemory>;
        let cursor = offset_of!(Arena, cursor);
        let lines = cursor..cursor + size_of::<Cursor>();
        assert_eq!((align_of::<Arena>() % 128, lines.start % 128, lines.end % 128), (0, 0, 0));
        let first = offset_of!(Arena, base) / 128;
        for constant in [
            offset_of!(Arena, base),
            offset_of!(Arena, limit),
            offset_of!(Arena, direct),
            offset_of!(Arena, memory),
        ] {
            assert!(!lines.contains(&constant), "{constant} is within {lines:?}");
            assert_eq!(constant / 128, first);
        }
    }

    /// Miri sees that no two slices overlap and that none leaves the memory.
    #[test]
    fn threads_write_to_slices_of_heap_memory() -> Result<(), BumpError> {
        let mut arena = BumpArena::new(HeapMemory::new(1000, 8)?);
        for _ in 0..2 {
            std::thread::scope(|scope| {
                for number in 0..2u8 {
                    let arena = &arena;
                    scope.spawn(move || {
                        while let Ok(bytes) = arena.allocate_uninit(7 + usize::from(number), 8) {
                            bytes.fill(MaybeUninit::new(number));
                            for byte in bytes {
                                // SAFETY: `fill` has just initialized all bytes.
                                assert_eq!(unsafe { byte.assume_init() }, number);
                            }
                        }
                    });
                }
            });
            assert!(arena.stats().remaining < 15);
            arena.reset();
        }
        Ok(())
    }

    #[test]
    fn an_error_is_small() {
        assert!(size_of::<BumpError>() <= 24);
        assert!(size_of::<Result<NonNull<[u8]>, BumpError>>() <= 32);
    }
}

//! *Bump arena*: bytes of one memory, handed out from the first to the last and never taken back
//! one by one.
//!
//! ```text
//!   base                          cursor                                  limit
//!    │ handed out, and padding      │ padding │ the next request │ ...      │
//!    ├──────────────────────────────┼─────────┼──────────────────┼──────────┤
//!                                             └ a multiple of its alignment, as an address
//! ```
//!
//! Its whole state is the cursor (see `cursor.rs`); everything else is constant and stands on other
//! cache lines, where the exchanges of other threads do not disturb it. That decides what the
//! figures are: `used` and `left` come from one load of the cursor, so they always add up, and no
//! allocation pays for them. How many allocations there were is not counted here: the count would
//! be a second atomic operation for each of them. Who wants it, counts calls.
//!
//! Alignment is of the *address*. Where the memory begins at a multiple of 4096 and 2 MiB are asked
//! for, the offset within the memory is not a multiple of 2 MiB, and must not be.
//!
//! Two faces hand out the same bytes: the raw one for those who keep their own account of who uses
//! what, and, where nobody else can reach the memory, a safe one whose slices borrow the arena.
//! [`BumpArena::reset`] takes the arena exclusively, so it cannot be called while such a slice
//! lives.

use std::alloc::Layout;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;

use super::cursor::Cursor;
use super::{BumpError, Exclusive, Memory};

/// Hands out bytes of `M` by moving a cursor. Shared by reference among any number of threads,
/// without a lock.
///
/// An allocation is one atomic read-modify-write, repeated only when another thread's came between.
/// A refusal is a load and writes nothing. Nothing is logged.
///
/// ```
/// use std::mem::MaybeUninit;
///
/// use kvmem::arena::{BumpArena, BumpError, HeapMemory};
///
/// let mut arena = BumpArena::new(HeapMemory::new(1 << 20, 4096)?);
///
/// // Eight threads, each with a piece of its own.
/// std::thread::scope(|scope| {
///     for byte in 0..8 {
///         let arena = &arena;
///         scope.spawn(move || {
///             let piece = arena.alloc_uninit(100_000, 64).expect("there is room for eight");
///             assert_eq!(piece.as_ptr().addr() % 64, 0);
///             piece.fill(MaybeUninit::new(byte));
///         });
///     }
/// });
/// assert!(arena.stats().used >= 800_000);
///
/// // What does not fit is a value.
/// let refused = arena.alloc_bytes(1 << 20, 1).expect_err("most of it is gone");
/// assert!(matches!(refused, BumpError::Full { requested: 1_048_576, left } if left <= 248_576));
///
/// // Nothing is borrowed any more: all of it is free again.
/// arena.reset();
/// assert_eq!(arena.stats().left, 1 << 20);
/// # Ok::<(), BumpError>(())
/// ```
///
/// Drawback: nothing is freed alone. Memory that comes and goes is the business of
/// [`offset`](crate::offset).
pub struct BumpArena<M: Memory> {
    cursor: Cursor,
    base: NonNull<u8>,
    /// One past the last byte. Never less than the cursor.
    limit: usize,
    memory: M,
}

// SAFETY: the memory may go to other threads, and with it its base. The arena itself hands out
// addresses, by an atomic exchange, and slices only of memory that any thread may use (`Exclusive`,
// 1).
unsafe impl<M: Memory> Send for BumpArena<M> {}
// SAFETY: as above.
unsafe impl<M: Memory> Sync for BumpArena<M> {}

/// What an arena has handed out, at one moment. `used + left == capacity`, always.
///
/// ```
/// use kvmem::arena::{BumpArena, BumpStats, HeapMemory};
///
/// let arena = BumpArena::new(HeapMemory::new(1024, 64)?);
/// arena.alloc_bytes(1, 1)?;
/// arena.alloc_bytes(64, 64)?; // 63 bytes of padding before it
/// assert_eq!(arena.stats(), BumpStats { capacity: 1024, used: 128, left: 896 });
/// # Ok::<(), kvmem::arena::BumpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BumpStats {
    /// Bytes of the memory.
    pub capacity: usize,
    /// Bytes handed out since the beginning or the last reset, with the padding before them.
    pub used: usize,
    /// Bytes not handed out.
    pub left: usize,
}

impl<M: Memory> BumpArena<M> {
    /// An arena on this memory, all of it free. O(1); the bytes are not touched.
    pub fn new(memory: M) -> Self {
        let base = memory.base();
        let start = base.addr().get();
        // Does not overflow (`Memory`, 2).
        BumpArena { cursor: Cursor::new(start), base, limit: start + memory.len(), memory }
    }

    /// Hands out `layout.size()` bytes at a multiple of `layout.align()`; the slice is as long as
    /// was asked for. Lock-free, one atomic read-modify-write.
    ///
    /// The bytes are as the memory was, or as they were left before a reset. They may be used until
    /// the arena is reset, dropped or taken apart; that is for the caller to see to.
    ///
    /// # Errors
    ///
    /// [`BumpError::Zero`] and [`BumpError::Full`], in the time of a load.
    ///
    /// ```
    /// # use kvmem::arena::{BumpArena, BumpError, HeapMemory};
    /// use std::alloc::Layout;
    ///
    /// let arena = BumpArena::new(HeapMemory::new(1 << 16, 64)?);
    /// let table = arena.alloc(Layout::new::<[u64; 100]>())?;
    /// assert_eq!((table.len(), table.cast::<u64>().is_aligned()), (800, true));
    /// # Ok::<(), kvmem::arena::BumpError>(())
    /// ```
    #[inline]
    pub fn alloc(&self, layout: Layout) -> Result<NonNull<[u8]>, BumpError> {
        let (size, mask) = (layout.size(), layout.align() - 1);
        if size == 0 {
            return Err(BumpError::Zero);
        }
        match self.cursor.take(size, mask, self.limit) {
            Ok(start) => Ok(self.bytes(start, size)),
            Err(left) => Err(BumpError::Full { requested: size, left }),
        }
    }

    /// As [`alloc`](Self::alloc), for callers that come with two numbers.
    ///
    /// # Errors
    ///
    /// [`BumpError::BadAlign`] and [`BumpError::Overflow`] besides.
    ///
    /// ```
    /// # use kvmem::arena::{BumpArena, BumpError, HeapMemory};
    /// let arena = BumpArena::new(HeapMemory::new(1 << 16, 64)?);
    /// let page = arena.alloc_bytes(100, 4096)?.cast::<u8>();
    /// assert_eq!(page.addr().get() % 4096, 0);
    /// // SAFETY: 100 bytes that nobody else has; the arena is not reset meanwhile.
    /// unsafe { page.write_bytes(7, 100) };
    /// # Ok::<(), kvmem::arena::BumpError>(())
    /// ```
    #[inline]
    pub fn alloc_bytes(&self, size: usize, align: usize) -> Result<NonNull<[u8]>, BumpError> {
        self.alloc(BumpError::layout(size, align)?)
    }

    /// Whether the address is one of this arena's memory, handed out or not. Reads constants only.
    ///
    /// ```
    /// # use kvmem::arena::{BumpArena, BumpError, HeapMemory};
    /// let arena = BumpArena::new(HeapMemory::new(1 << 16, 64)?);
    /// assert!(arena.owns(arena.alloc_bytes(1, 1)?.as_ptr().cast()));
    /// assert!(!arena.owns(&0));
    /// # Ok::<(), kvmem::arena::BumpError>(())
    /// ```
    #[inline]
    pub fn owns(&self, address: *const u8) -> bool {
        (self.base.addr().get()..self.limit).contains(&address.addr())
    }

    /// Whether the address has been handed out (or is padding before what has been).
    #[cfg(not(loom))]
    pub(super) fn has_handed_out(&self, address: *const u8) -> bool {
        (self.base.addr().get()..self.cursor.at()).contains(&address.addr())
    }

    /// What is used and left, from one load. Whatever this thread knows to have been handed out is
    /// in it.
    ///
    /// ```
    /// # use kvmem::arena::{BumpArena, BumpError, HeapMemory};
    /// let arena = BumpArena::new(HeapMemory::new(1000, 64)?);
    /// arena.alloc_bytes(300, 1)?;
    /// assert_eq!(arena.stats().left, 700);
    /// # Ok::<(), kvmem::arena::BumpError>(())
    /// ```
    #[inline]
    pub fn stats(&self) -> BumpStats {
        let at = self.cursor.at();
        BumpStats {
            capacity: self.capacity(),
            used: at - self.base.addr().get(),
            left: self.limit - at,
        }
    }

    /// Bytes of the memory.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.limit - self.base.addr().get()
    }

    /// The first byte of the memory.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Makes all of it free again. O(1); the bytes stay as they are.
    ///
    /// Nothing that [`alloc_uninit`](Self::alloc_uninit) gave is borrowed any more: the compiler
    /// sees to that. What the raw face gave will be handed out again, and must not be used from
    /// here on.
    ///
    /// ```
    /// # use kvmem::arena::{BumpArena, BumpError, HeapMemory};
    /// let mut arena = BumpArena::new(HeapMemory::new(1000, 64)?);
    /// let first = arena.alloc_bytes(1000, 1)?;
    /// arena.reset();
    /// assert_eq!(arena.alloc_bytes(1000, 1)?, first);
    /// # Ok::<(), kvmem::arena::BumpError>(())
    /// ```
    pub fn reset(&mut self) {
        self.cursor.set(self.base.addr().get());
    }

    /// Takes the arena apart. What the raw face gave must not be used from here on, unless the
    /// memory says otherwise.
    ///
    /// ```
    /// # use kvmem::arena::{BumpArena, BumpError, HeapMemory};
    /// use kvmem::arena::Memory;
    ///
    /// let arena = BumpArena::new(HeapMemory::new(1000, 64)?);
    /// assert_eq!(arena.into_memory().len(), 1000);
    /// # Ok::<(), kvmem::arena::BumpError>(())
    /// ```
    pub fn into_memory(self) -> M {
        self.memory
    }

    /// `[start, start + size)`, which the cursor has just passed.
    #[inline]
    fn bytes(&self, start: usize, size: usize) -> NonNull<[u8]> {
        let offset = start - self.base.addr().get();
        // SAFETY: `start` is between base and limit, so the offset is within the one allocation
        // that the memory is.
        let first = unsafe { self.base.add(offset) };
        NonNull::slice_from_raw_parts(first, size)
    }
}

impl<M: Exclusive> BumpArena<M> {
    /// As [`alloc_bytes`](Self::alloc_bytes), as a slice that borrows the arena: it cannot outlive
    /// it, nor a reset.
    ///
    /// ```compile_fail
    /// # use kvmem::arena::{BumpArena, HeapMemory};
    /// let mut arena = BumpArena::new(HeapMemory::new(1024, 64).unwrap());
    /// let piece = arena.alloc_uninit(10, 1).unwrap();
    /// arena.reset();
    /// piece.fill(std::mem::MaybeUninit::new(0)); // error: `arena` is still borrowed
    /// ```
    ///
    /// # Errors
    ///
    /// Any [`BumpError`].
    #[inline]
    // Each call gives bytes that no other call gives.
    #[allow(clippy::mut_from_ref)]
    pub fn alloc_uninit(
        &self,
        size: usize,
        align: usize,
    ) -> Result<&mut [MaybeUninit<u8>], BumpError> {
        let bytes = self.alloc_bytes(size, align)?;
        // SAFETY: the bytes are within the memory, which is readable, writable and stays until
        // `self` is dropped (`Exclusive`, 1, and `Memory`, 3); `MaybeUninit` asks nothing
        // of their contents. No other call has them: the cursor has passed them and goes
        // back only in `reset`, which no borrow of `self` survives; and nobody reaches them
        // past the arena (`Exclusive`, 2).
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

    /// What is written by every allocation shares no line with what each of them only reads.
    #[test]
    fn constants_stand_apart_from_the_cursor() {
        type Arena = BumpArena<HeapMemory>;
        let cursor = offset_of!(Arena, cursor);
        let lines = cursor..cursor + size_of::<Cursor>();
        assert_eq!((align_of::<Arena>() % 128, lines.start % 128, lines.end % 128), (0, 0, 0));
        for constant in
            [offset_of!(Arena, base), offset_of!(Arena, limit), offset_of!(Arena, memory)]
        {
            assert!(!lines.contains(&constant), "{constant} is within {lines:?}");
        }
    }

    #[test]
    fn an_error_is_small() {
        assert!(size_of::<BumpError>() <= 24);
        assert!(size_of::<Result<NonNull<[u8]>, BumpError>>() <= 32);
    }
}

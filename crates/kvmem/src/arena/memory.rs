//! *Memory*: bytes that an arena may hand out.

use std::alloc::{self, Layout};
use std::fmt;
use std::ptr::NonNull;

use super::BumpError;

/// Bytes that stay where they are and belong to one owner alone.
///
/// An arena takes such a thing in, and from then on is the only one who hands out its bytes.
///
/// # Safety
///
/// Whoever implements this vouches, for as long as the value lives and whoever moves it about, that
///
/// 1. `base` and `len` always return the same;
/// 2. the bytes `[base, base + len)` are one allocation, may be read and written through `base` by any thread, and
///    `base + len` does not overflow;
/// 3. nobody else reads or writes them. Above all, no safe method that is reached through a shared reference to the value
///    gives access to them;
/// 4. they stay until the value is dropped, and no longer than that may anyone count on them.
///
/// They need not be initialized, nor resident.
///
/// ```
/// use std::ptr::NonNull;
///
/// use kvmem::arena::{BumpArena, Memory};
///
/// /// Bytes that are never given back.
/// struct Leaked(NonNull<[u8]>);
///
/// // SAFETY: nobody else has the pointer, and the bytes are anybody's, in any thread.
/// unsafe impl Send for Leaked {}
/// // SAFETY: a shared reference gives only address and length.
/// unsafe impl Sync for Leaked {}
///
/// // SAFETY: 1. the field does not change; 2. and 4. they are one box of bytes that is never dropped; 3. the field is private.
/// unsafe impl Memory for Leaked {
///     fn base(&self) -> NonNull<u8> {
///         self.0.cast()
///     }
///
///     fn len(&self) -> usize {
///         self.0.len()
///     }
/// }
///
/// let bytes = NonNull::from(Box::leak(vec![0; 4096].into_boxed_slice()));
/// let arena = BumpArena::new(Leaked(bytes));
/// assert_eq!(arena.alloc_bytes(100, 1)?.cast(), bytes.cast::<u8>());
/// # Ok::<(), kvmem::arena::BumpError>(())
/// ```
pub unsafe trait Memory: Send + Sync {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;

    /// How many bytes there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes of the process's ordinary heap, aligned as one likes.
///
/// For tests, small arenas, and machines where nothing may be mapped. Nothing is known of its pages.
///
/// ```
/// use kvmem::arena::{BumpArena, HeapMemory, Memory};
///
/// let memory = HeapMemory::new(1 << 16, 4096)?;
/// assert_eq!((memory.base().addr().get() % 4096, memory.len()), (0, 1 << 16));
/// let arena = BumpArena::new(memory);
/// assert_eq!(arena.capacity(), 1 << 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HeapMemory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns its bytes as a `Box` does; they are reached through it from any thread alike.
unsafe impl Send for HeapMemory {}
// SAFETY: a shared reference gives only address and length.
unsafe impl Sync for HeapMemory {}

impl HeapMemory {
    /// Zeroed bytes, the first at a multiple of `align`.
    ///
    /// # Errors
    ///
    /// [`BumpError::Zero`], [`BumpError::BadAlign`] and [`BumpError::Overflow`] as for a request to an arena;
    /// [`BumpError::Full`] with `left` 0 if the heap has no such room.
    pub fn new(len_bytes: usize, align: usize) -> Result<Self, BumpError> {
        let layout = BumpError::layout(len_bytes, align)?;
        // SAFETY: `layout` found the length not to be 0.
        let base = unsafe { alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or(BumpError::Full { asked: len_bytes, left: 0 })?;
        Ok(HeapMemory { base, layout })
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: `new` got these bytes with this layout, and nobody may use them after the value (see `Memory`, 4).
        unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

// SAFETY: 1. both come from fields that never change. 2. The allocator gave them in one piece. 3. No other method gives
// access, and the pointer is the only one there is. 4. They are given back in `drop`.
unsafe impl Memory for HeapMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.layout.size()
    }
}

impl fmt::Debug for HeapMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeapMemory").field("base", &self.base).field("len", &self.layout.size()).finish()
    }
}

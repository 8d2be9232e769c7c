//! *Memory*: bytes that an arena can hand out.

use std::alloc::{self, Layout};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::error::BumpError;
use crate::arena::{ArenaError, Region};

/// Bytes at a fixed address.
///
/// An arena takes the value in and hands out its bytes as addresses. The code that uses them must
/// know what this memory is, and which other processes or devices can reach it. [`Exclusive`] adds
/// the promise that nothing else reaches the bytes and that they can be used like any other memory.
///
/// # Safety
///
/// The implementation guarantees, while the value lives and wherever it is moved:
///
/// 1. `base` and `len` always return the same values.
/// 2. The addresses `[base, base + len)` are one allocation of this process, at most `isize::MAX`
///    bytes long.
/// 3. The addresses belong to the value: until it is dropped, nothing else is mapped or allocated
///    there.
///
/// ```
/// use std::ptr::NonNull;
///
/// use kvmem::arena::{BumpArena, Memory};
///
/// /// Bytes that are never freed.
/// struct Leaked(NonNull<[u8]>);
///
/// // SAFETY: no other code has the pointer, and any thread may use the bytes.
/// unsafe impl Send for Leaked {}
/// // SAFETY: a shared reference gives only address and length.
/// unsafe impl Sync for Leaked {}
///
/// // SAFETY: 1. the field does not change; 2. and 3. they are one box of bytes that is never
/// // dropped.
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
/// assert_eq!(arena.allocate_bytes(100, 1)?.cast(), bytes.cast::<u8>());
/// # Ok::<(), kvmem::arena::BumpError>(())
/// ```
pub unsafe trait Memory: Send + Sync {
    /// Returns the address of the first byte.
    fn base(&self) -> NonNull<u8>;

    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Memory that only its owner can reach: its bytes may be lent out as slices.
///
/// # Safety
///
/// The implementation guarantees, while the value lives:
///
/// 1. Any thread may read and write the bytes through `base`. They need not be initialized or
///    resident.
/// 2. Nothing else reads or writes them: no other process, no device, and no safe method that is
///    called on a shared reference to the value.
///
///
/// ```compile_fail
/// # use std::ptr::NonNull;
/// # use kvmem::arena::{BumpArena, Memory};
/// # struct Addresses;
/// # unsafe impl Memory for Addresses {
/// #     fn base(&self) -> NonNull<u8> { NonNull::dangling() }
/// #     fn len(&self) -> usize { 0 }
/// # }
/// // `Addresses` is `Memory`, but not `Exclusive`: its bytes are handed out as addresses only.
/// BumpArena::new(Addresses).allocate_bytes(1, 1).unwrap_err();
/// BumpArena::new(Addresses).allocate_uninit(1, 1).unwrap_err(); // error: not `Exclusive`
/// ```
pub unsafe trait Exclusive: Memory {}

/// Bytes of the process's ordinary heap, with any alignment.
///
/// For tests, small arenas, and machines where the process may not map memory. The kinds of its
/// pages are unknown.
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

// SAFETY: the value owns its bytes as a `Box` does; every thread reaches them through the value
// alone.
unsafe impl Send for HeapMemory {}
// SAFETY: a shared reference gives only address and length.
unsafe impl Sync for HeapMemory {}

impl HeapMemory {
    /// Allocates zeroed bytes, the first at a multiple of `align`.
    ///
    /// # Errors
    ///
    /// [`BumpError::Zero`] for a length of 0, [`BumpError::BadAlign`] if `align` is not a power of
    /// two, [`BumpError::Overflow`] if no object can be that long, and [`BumpError::Full`] with
    /// `left` 0 if the heap cannot provide the bytes.
    pub fn new(len_bytes: usize, align: usize) -> Result<Self, BumpError> {
        let layout = BumpError::layout(len_bytes, align)?;
        // SAFETY: `BumpError::layout` returns only layouts with a size greater than 0.
        let base = unsafe { alloc::alloc_zeroed(layout) };
        let base =
            NonNull::new(base).ok_or(BumpError::Full { requested: len_bytes, remaining: 0 })?;
        Ok(HeapMemory { base, layout })
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: `new` got these bytes with this layout, and no code may use them after the value
        // is dropped.
        unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

// SAFETY: 1. both come from fields that never change. 2. The allocator returned the bytes as one
// block for a layout. 3. Only `drop` frees them.
unsafe impl Memory for HeapMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.layout.size()
    }
}

// SAFETY: 1. heap memory is readable and writable from any thread. 2. `base` is the only way to
// reach it.
unsafe impl Exclusive for HeapMemory {}

// SAFETY: 1. a region never moves or changes its length. 2. It is one mapping. 3. The mapping ends
// with the last part of the region, not before.
unsafe impl Memory for Region {
    fn base(&self) -> NonNull<u8> {
        self.base()
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// A [`Region`] that no other process and no foreign owner can reach. An arena can therefore hand
/// out its bytes as slices.
#[derive(Debug)]
pub struct ExclusiveRegion(Region);

impl ExclusiveRegion {
    /// Takes a region in.
    ///
    /// # Errors
    ///
    /// [`ArenaError::Shared`] for a region that another process may have attached,
    /// [`ArenaError::Foreign`] for a region over memory of another owner.
    ///
    /// ```
    /// use kvmem::arena::{ArenaError, Backing, BumpArena, ExclusiveRegion, Region};
    ///
    /// let mut arena = BumpArena::new(ExclusiveRegion::new(Region::builder(1 << 20).map()?)?);
    /// assert_eq!(arena.allocate_uninit(1000, 64)?.len(), 1000);
    /// arena.reset();
    /// let region = arena.into_memory().into_region();
    /// assert_eq!(region.requested(), 1 << 20);
    ///
    /// let shared = Region::builder(1 << 20).backing(Backing::Shared).map()?;
    /// assert_eq!(ExclusiveRegion::new(shared).err(), Some(ArenaError::Shared));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(mut region: Region) -> Result<Self, ArenaError> {
        region.as_mut_bytes()?;
        Ok(ExclusiveRegion(region))
    }

    /// Returns the region unchanged.
    #[must_use]
    pub fn into_region(self) -> Region {
        self.0
    }
}

// SAFETY: 1., 2. and 3. follow from those of the shared memory: it does not move, and it lives
// until the last `Arc` is dropped.
unsafe impl<M: Memory> Memory for Arc<M> {
    fn base(&self) -> NonNull<u8> {
        M::base(self)
    }

    fn len(&self) -> usize {
        M::len(self)
    }
}

// SAFETY: 1., 2. and 3. follow from those of the region in it.
unsafe impl Memory for ExclusiveRegion {
    fn base(&self) -> NonNull<u8> {
        self.0.base()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

// SAFETY: 1. it is mapped for reading and writing. 2. `new` checked that no other process and no
// owner reaches it. The region is accessible only by giving up this value, and parts that were
// split off have other bytes.
unsafe impl Exclusive for ExclusiveRegion {}

impl fmt::Debug for HeapMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeapMemory")
            .field("base", &self.base)
            .field("len", &self.layout.size())
            .finish()
    }
}

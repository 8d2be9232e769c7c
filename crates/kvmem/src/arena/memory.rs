//! *Memory*: bytes that an arena may hand out.

use std::alloc::{self, Layout};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{ArenaError, BumpError, Region};

/// Bytes that stay where they are.
///
/// An arena takes such a thing in, and from then on is the one who hands out its bytes. What it
/// hands out are addresses: whoever uses them knows what this memory is, and who else may reach it
/// (another process, a device). That nobody else does, and that the bytes can be used as any
/// others, is what [`Exclusive`] says.
///
/// # Safety
///
/// Whoever implements this vouches, for as long as the value lives and wherever it is moved, that
///
/// 1. `base` and `len` always return the same;
/// 2. the addresses `[base, base + len)` are one allocation of this process, at most `isize::MAX`
///    bytes long;
/// 3. they belong to the value: until it is dropped nothing else is put there.
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
/// // SAFETY: 1. the field does not change; 2. and 3. they are one box of bytes that is never dropped.
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

/// Memory that its owner has alone: its bytes may be lent out as slices.
///
/// # Safety
///
/// Whoever implements this vouches that, as long as the value lives,
///
/// 1. any thread may read and write the bytes through `base`. They need not be initialized, nor
///    resident;
/// 2. nobody else does: no other process, no device, and no safe method that is reached through a
///    shared reference to the value.
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
/// BumpArena::new(Addresses).alloc_bytes(1, 1).unwrap_err();
/// BumpArena::new(Addresses).alloc_uninit(1, 1).unwrap_err(); // error: not `Exclusive`
/// ```
pub unsafe trait Exclusive: Memory {}

/// Bytes of the process's ordinary heap, aligned as one likes.
///
/// For tests, small arenas, and machines where nothing may be mapped. Nothing is known of its
/// pages.
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

// SAFETY: the value owns its bytes as a `Box` does; they are reached through it from any thread
// alike.
unsafe impl Send for HeapMemory {}
// SAFETY: a shared reference gives only address and length.
unsafe impl Sync for HeapMemory {}

impl HeapMemory {
    /// Zeroed bytes, the first at a multiple of `align`.
    ///
    /// # Errors
    ///
    /// [`BumpError::Zero`], [`BumpError::BadAlign`] and [`BumpError::Overflow`] as for a request to
    /// an arena; [`BumpError::Full`] with `left` 0 if the heap has no such room.
    pub fn new(len_bytes: usize, align: usize) -> Result<Self, BumpError> {
        let layout = BumpError::layout(len_bytes, align)?;
        // SAFETY: `layout` found the length not to be 0.
        let base = unsafe { alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or(BumpError::Full { requested: len_bytes, left: 0 })?;
        Ok(HeapMemory { base, layout })
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: `new` got these bytes with this layout, and nobody may use them after the value.
        unsafe { alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

// SAFETY: 1. both come from fields that never change. 2. The allocator gave them in one piece, for
// a layout. 3. They are given back in `drop` and nowhere else.
unsafe impl Memory for HeapMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.layout.size()
    }
}

// SAFETY: 1. it is ordinary memory. 2. `base` is the only way to it.
unsafe impl Exclusive for HeapMemory {}

// SAFETY: 1. a region never moves or changes its length. 2. It is mapped in one piece. 3. The
// mapping ends with its last part at the earliest.
unsafe impl Memory for Region {
    fn base(&self) -> NonNull<u8> {
        self.base()
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// A [`Region`] whose bytes no other process and no foreign owner can reach, so that an arena may
/// hand them out as slices.
#[derive(Debug)]
pub struct ExclusiveRegion(Region);

impl ExclusiveRegion {
    /// Takes a region in.
    ///
    /// # Errors
    ///
    /// [`ArenaError::Shared`] for one that another process may have attached,
    /// [`ArenaError::Foreign`] for one over memory of somebody else's.
    ///
    /// ```
    /// use kvmem::arena::{ArenaError, BumpArena, ExclusiveRegion, Region};
    ///
    /// let mut arena = BumpArena::new(ExclusiveRegion::new(Region::builder(1 << 20).map()?)?);
    /// assert_eq!(arena.alloc_uninit(1000, 64)?.len(), 1000);
    /// arena.reset();
    /// let region = arena.into_memory().into_region();
    /// assert_eq!(region.requested(), 1 << 20);
    ///
    /// let shared = Region::builder(1 << 20).memfd(true).map()?;
    /// assert_eq!(ExclusiveRegion::new(shared).err(), Some(ArenaError::Shared));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(mut region: Region) -> Result<Self, ArenaError> {
        region.as_mut_bytes()?;
        Ok(ExclusiveRegion(region))
    }

    /// The region, as it was.
    pub fn into_region(self) -> Region {
        self.0
    }
}

// SAFETY: 1., 2. and 3. as for the memory that is shared: it does not move, and does not go before
// the last of its owners.
unsafe impl<M: Memory> Memory for Arc<M> {
    fn base(&self) -> NonNull<u8> {
        M::base(self)
    }

    fn len(&self) -> usize {
        M::len(self)
    }
}

// SAFETY: as for the region in it.
unsafe impl Memory for ExclusiveRegion {
    fn base(&self) -> NonNull<u8> {
        self.0.base()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

// SAFETY: 1. it is mapped for reading and writing. 2. `new` has seen that no other process and no
// owner reaches it; the region is reached by giving up this value only, and parts that were split
// off have other bytes.
unsafe impl Exclusive for ExclusiveRegion {}

impl fmt::Debug for HeapMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeapMemory")
            .field("base", &self.base)
            .field("len", &self.layout.size())
            .finish()
    }
}

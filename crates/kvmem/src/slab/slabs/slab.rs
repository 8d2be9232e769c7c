//! *Slab*: pages divided into objects of one size.
//!
//! The header is at the beginning of the slab: an object finds it by masking its own address,
//! without a table. It is one cache line and holds everything that freeing needs: the owner, the
//! class, and a bit for each free object. Bits are better than a free list through the objects for
//! three reasons. An object that is freed in a batch has often left the processor's caches, and
//! setting a bit does not fetch it again. A double free shows in the bit. And a write to an object
//! after its free cannot corrupt the allocator.

use std::ptr::NonNull;

use super::geometry::{Geometry, HEADER, MAX_OBJECTS};

/// A free object that is passed between the layers: the right to use its memory. It is plain data,
/// so it can be copied; of all copies one is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Chunk(NonNull<u8>);

// SAFETY: a chunk is the address of memory that only the holder of the chunk uses, see
// `Chunk::new`; the memory is not tied to a thread.
unsafe impl Send for Chunk {}

impl Chunk {
    /// Makes the chunk of an object that its user returns.
    ///
    /// # Safety
    ///
    /// The memory came from the source of the magazines, or of the slabs, that the chunk is passed
    /// to, and from the class under which it is passed. No code uses the memory any more. If the
    /// source frees values, the memory holds one.
    #[inline(always)]
    pub(crate) unsafe fn new(at: NonNull<u8>) -> Chunk {
        Chunk(at)
    }

    /// Returns the address of the object.
    #[inline(always)]
    pub(crate) fn at(self) -> NonNull<u8> {
        self.0
    }
}

/// The header of a slab.
#[repr(C, align(64))]
pub(crate) struct Slab {
    /// The id of the `Slabs` that it belongs to.
    pub(crate) owner: u64,
    /// The next and the previous slab in the ring of the class.
    pub(crate) next: *mut Slab,
    pub(crate) prev: *mut Slab,
    /// Offset of the first object from the header, in bytes.
    first: u32,
    pub(crate) class: u16,
    /// Objects that are not free.
    pub(crate) live: u16,
    /// One bit for each object: 1 if it is free.
    free: [u64; MAX_OBJECTS / 64],
}

const _: () = assert!(size_of::<Slab>() == HEADER);

impl Slab {
    /// Divides pages into objects, which are all free.
    ///
    /// # Safety
    ///
    /// `at` is the beginning of `geometry.slab_bytes` bytes at a multiple of that number, and only
    /// the caller uses them.
    pub(crate) unsafe fn init(
        at: NonNull<u8>,
        geometry: &Geometry,
        owner: u64,
        class: usize,
        colour: usize,
    ) -> NonNull<Slab> {
        let slab = at.cast::<Slab>();
        let first = (HEADER + colour % geometry.colours() * geometry.step) as u32;
        let mut free = [0; MAX_OBJECTS / 64];
        for (word, bits) in free.iter_mut().enumerate() {
            *bits = match geometry.objects.saturating_sub(word * 64) {
                0 => 0,
                some @ 1..64 => (1 << some) - 1,
                _ => u64::MAX,
            };
        }
        let itself = slab.as_ptr();
        // SAFETY: the caller promises that the bytes are its own and that they begin at a multiple
        // of their number, which is a multiple of a header's size and alignment.
        unsafe {
            itself.write(Slab {
                owner,
                next: itself,
                prev: itself,
                first,
                class: class as u16,
                live: 0,
                free,
            })
        };
        slab
    }

    /// Returns the slab of an object of this geometry. Pure arithmetic; reads no memory.
    #[inline]
    pub(crate) fn of(chunk: NonNull<u8>, geometry: &Geometry) -> *mut Slab {
        let within = chunk.addr().get() & (geometry.slab_bytes - 1);
        chunk.as_ptr().wrapping_sub(within).cast()
    }

    /// Takes up to `want` free objects and passes the address of each to `take`.
    ///
    /// # Safety
    ///
    /// `slab` is a slab of this geometry, and no other code uses its header.
    pub(crate) unsafe fn take(
        slab: NonNull<Slab>,
        geometry: &Geometry,
        want: usize,
        mut take: impl FnMut(Chunk),
    ) -> usize {
        let mut taken = 0;
        // SAFETY: the caller promises that the header is initialized and that no other code uses
        // it. The reference covers only the header, so it does not alias objects in use.
        let header = unsafe { &mut *slab.as_ptr() };
        let first = header.first as usize;
        for word in 0..header.free.len() {
            let mut bits = header.free[word];
            while bits != 0 && taken < want {
                let index = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                // SAFETY: the object is within the slab, which has the provenance of all its
                // bytes.
                take(Chunk(unsafe { slab.cast::<u8>().add(first + index * geometry.size) }));
                taken += 1;
            }
            header.free[word] = bits;
            if taken == want {
                break;
            }
        }
        header.live += taken as u16;
        taken
    }

    /// Returns the index of the object that begins at this address; `None` if none does.
    pub(crate) fn index(&self, chunk: NonNull<u8>, geometry: &Geometry) -> Option<usize> {
        let within = chunk.addr().get() & (geometry.slab_bytes - 1);
        geometry.index(within.checked_sub(self.first as usize)?)
    }

    /// Marks an object as free; returns `false` if it was free already.
    pub(crate) fn give(&mut self, index: usize) -> bool {
        let (word, bit) = (index / 64, 1 << (index % 64));
        if self.free[word] & bit != 0 {
            return false;
        }
        self.free[word] |= bit;
        self.live -= 1;
        true
    }
}

//! *Slab*: pages that are divided into objects of one size.
//!
//! The header stands inside the slab, at its beginning: an object finds it by masking its own
//! address, with no table between. It is one cache line and has all that freeing needs: whose slab
//! it is, of which class, and a bit for each object that is free. The bits, and not a list through
//! the objects: an object that is taken back in a batch has often left the processor's caches, and
//! is not fetched for being freed; a second free is seen by its bit; and what a user writes into an
//! object after freeing it cannot lead the allocator astray.

use std::ptr::NonNull;

use super::class::Geometry;

/// Bytes of the header.
pub(crate) const HEADER: usize = 64;
/// Objects that the bits of a header can stand for.
pub(crate) const MAX_OBJECTS: usize = 256;

/// An object on its way between the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Chunk(pub(crate) NonNull<u8>);

// SAFETY: a chunk is an address of memory that whoever has the chunk has alone; memory does not
// mind its thread.
unsafe impl Send for Chunk {}

/// The header of a slab.
#[repr(C, align(64))]
pub(crate) struct Slab {
    /// The number of the `Slabs` it belongs to.
    pub(crate) owner: u64,
    /// The next one in the ring of the class, and the one before.
    pub(crate) next: *mut Slab,
    pub(crate) prev: *mut Slab,
    /// Where the first object begins, in bytes from the header.
    first: u32,
    pub(crate) class: u16,
    /// Objects that are not free.
    pub(crate) live: u16,
    /// A bit for each object that is free.
    free: [u64; MAX_OBJECTS / 64],
}

const _: () = assert!(size_of::<Slab>() == HEADER);

impl Slab {
    /// Divides pages: all objects are free.
    ///
    /// # Safety
    /// `at` begins `geometry.slab_bytes` bytes at a multiple of that, which are the caller's alone.
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
        // SAFETY: the bytes are the caller's, and aligned to more than a header is.
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

    /// The slab that an object of this geometry is in. Computed only; nothing is read.
    #[inline]
    pub(crate) fn of(chunk: NonNull<u8>, geometry: &Geometry) -> *mut Slab {
        let within = chunk.addr().get() & (geometry.slab_bytes - 1);
        chunk.as_ptr().wrapping_sub(within).cast()
    }

    /// Takes up to `want` free objects, and hands the address of each to `take`.
    ///
    /// # Safety
    /// `slab` is a slab of this geometry, and nobody else uses its header.
    pub(crate) unsafe fn take(
        slab: NonNull<Slab>,
        geometry: &Geometry,
        want: usize,
        mut take: impl FnMut(NonNull<u8>),
    ) -> usize {
        let mut taken = 0;
        // SAFETY: the caller's promise. The reference covers the header alone.
        let header = unsafe { &mut *slab.as_ptr() };
        let first = header.first as usize;
        for word in 0..header.free.len() {
            let mut bits = header.free[word];
            while bits != 0 && taken < want {
                let index = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                // SAFETY: the object is within the slab.
                take(unsafe { slab.cast::<u8>().add(first + index * geometry.size) });
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

    /// Which object of the slab this address is; `None` if none begins there.
    pub(crate) fn index(&self, chunk: NonNull<u8>, geometry: &Geometry) -> Option<usize> {
        let within = chunk.addr().get() & (geometry.slab_bytes - 1);
        geometry.index(within.checked_sub(self.first as usize)?)
    }

    /// Makes an object free; `false` if it was.
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

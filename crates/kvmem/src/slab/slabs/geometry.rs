//! *Geometry*: the division of a slab into objects of one size.
//!
//! A slab is the smallest power of two, from 4 KiB on, that holds at least eight objects and loses
//! at most an eighth of its bytes to its header and the remainder. (*The Slab Allocator*, 1994,
//! section 3: eight objects bound the waste to 12.5 %.) The remainder colours the slab: in each
//! next slab of a class the first object begins one step later, so equal fields of equal objects do
//! not all fall into the same sets of the processor's caches.

use super::page_span::UNIT;

/// The alignment of all objects, the same as that of the platform's `malloc`.
pub(crate) const ALIGN: usize = 16;
/// The largest size that a slab can be divided into.
pub(crate) const MAX_SIZE_IN_SLAB: usize = (32 << 10) - ALIGN;
/// The strictest alignment of objects in a slab.
pub(crate) const MAX_ALIGN: usize = 64;
/// Bytes of a slab's header.
pub(crate) const HEADER: usize = 64;
/// The number of objects that a header has bits for.
pub(crate) const MAX_OBJECTS: usize = 256;

/// The division of a slab into objects of one size.
///
/// ```text
///   slab                                                        slab + slab_bytes
///    │ header │ colour │ object │ object │ …  │ object │ rest    │
///    └ at a multiple of slab_bytes             colour + rest = slack
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes per object.
    pub(crate) size: usize,
    /// A power of two.
    pub(crate) slab_bytes: usize,
    /// Objects per slab: at least 8.
    pub(crate) objects: usize,
    /// Bytes of the remainder.
    pub(crate) slack: usize,
    /// Bytes between two colours; a multiple of every alignment up to 64 that `size` is a multiple
    /// of.
    pub(crate) step: usize,
    /// `2^32 / size`, rounded up.
    reciprocal: u64,
}

impl Geometry {
    /// Computes the division for objects of `size` bytes: a multiple of [`ALIGN`], up to
    /// [`MAX_SIZE_IN_SLAB`].
    pub(crate) const fn new(size: usize) -> Geometry {
        let mut slab_bytes = UNIT;
        loop {
            let room = slab_bytes - HEADER;
            let fit = room / size;
            let objects = if fit > MAX_OBJECTS { MAX_OBJECTS } else { fit };
            if objects >= 8 && (slab_bytes - objects * size) * 8 <= slab_bytes {
                let slack = room - objects * size;
                let natural = 1 << size.trailing_zeros();
                let step = if natural > MAX_ALIGN { MAX_ALIGN } else { natural };
                let reciprocal = (1u64 << 32).div_ceil(size as u64);
                return Geometry { size, slab_bytes, objects, slack, step, reciprocal };
            }
            slab_bytes *= 2;
        }
    }

    /// Returns the number of places that the first object can have.
    pub(crate) const fn colours(&self) -> usize {
        self.slack / self.step + 1
    }

    /// Returns the index of the object that begins `offset` bytes after the first one; `None` if
    /// none does.
    #[inline]
    pub(crate) fn index(&self, offset: usize) -> Option<usize> {
        // Exact: offset < 2^18, and the reciprocal is too large by less than 1, so the product is
        // too large by less than 2^18. That is less than the distance to the next whole quotient,
        // 2^32 / size > 2^16. This covers quotients that are whole; for all others the comparison
        // below decides.
        let index = ((offset as u64 * self.reciprocal) >> 32) as usize;
        (index * self.size == offset && index < self.objects).then_some(index)
    }
}

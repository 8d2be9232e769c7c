//! *Class*: a size of objects, and how a slab is divided among objects of it.
//!
//! | sizes | step | most that a request wastes |
//! |---|---|---|
//! | 1 … 512 | 16 | 15 bytes |
//! | 513 … 8192 | 1/16 of the power of two below | 6 % |
//!
//! A slab is the smallest power of two, from 4 KiB on, that holds eight objects or more and loses
//! no more than an eighth of itself to its header and to what is left over. (*The Slab Allocator*,
//! 1994, section 3: eight objects bound the waste to 12.5 %.) What is left over colours the slab:
//! the first object of each next slab of a class begins a step later, so that equal fields of equal
//! objects do not all fall into the same sets of the processor's caches.

use super::page_source::UNIT;
use super::slab::{HEADER, MAX_OBJECTS};

/// All objects are aligned to this, as those of the platform's `malloc` are.
pub(crate) const ALIGN: usize = 16;
/// The largest size that has a class.
pub(crate) const MAX_SIZE: usize = 8192;
/// The largest size that a slab can be divided into.
pub(crate) const MAX_SIZE_IN_SLAB: usize = (32 << 10) - ALIGN;
/// The strictest alignment of objects in a slab.
pub(crate) const MAX_ALIGN: usize = 64;
/// Classes of [`SIZES`].
pub(crate) const CLASSES: usize = FINE + 16 * 4;

/// Classes that are one [`ALIGN`] apart.
const FINE: usize = 32;

/// The size of objects of a class.
pub(crate) const fn size_of_class(class: usize) -> usize {
    if class < FINE {
        return (class + 1) * ALIGN;
    }
    let octave = (class - FINE) / 16;
    (512 << octave) + ((class - FINE) % 16 + 1) * (32 << octave)
}

/// The class of a size, by the number of whole [`ALIGN`]s below it. A reference and not a static: a
/// crate that this is inlined into has a copy of its own then, and need not load where it is.
const CLASS_OF: &[u8; MAX_SIZE / ALIGN] = &{
    let mut table = [0; MAX_SIZE / ALIGN];
    let (mut at, mut class) = (0, 0);
    while at < table.len() {
        if size_of_class(class) < (at + 1) * ALIGN {
            class += 1;
        }
        table[at] = class as u8;
        at += 1;
    }
    table
};

/// The smallest class for `size` bytes, 1 to [`MAX_SIZE`].
#[inline(always)]
pub(crate) fn class_of(size: usize) -> usize {
    usize::from(CLASS_OF[(size - 1) / ALIGN])
}

/// The smallest class for `size` bytes at a multiple of `align`; `None` if there is none.
pub(crate) fn class_aligned(size: usize, align: usize) -> Option<usize> {
    if size == 0 || size > MAX_SIZE || align > MAX_ALIGN {
        return None;
    }
    (class_of(size)..CLASSES).find(|class| size_of_class(*class).is_multiple_of(align))
}

/// How slabs of one size of objects are divided.
///
/// ```text
///   slab                                                        slab + slab_bytes
///    │ header │ colour │ object │ object │ …  │ object │ rest    │
///    └ at a multiple of slab_bytes             colour + rest = slack
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes of an object.
    pub(crate) size: usize,
    /// A power of two.
    pub(crate) slab_bytes: usize,
    /// Objects of a slab: at least 8.
    pub(crate) objects: usize,
    /// Bytes that are left over.
    pub(crate) slack: usize,
    /// Colours are this many bytes apart; a multiple of every alignment that `size` is a multiple
    /// of, up to 64.
    pub(crate) step: usize,
    /// `2^32 / size`, rounded up.
    reciprocal: u64,
}

impl Geometry {
    /// For objects of `size` bytes: a multiple of [`ALIGN`], up to [`MAX_SIZE_IN_SLAB`].
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

    /// How many places the first object may have.
    pub(crate) const fn colours(&self) -> usize {
        self.slack / self.step + 1
    }

    /// Which object begins `offset` bytes after the first one; `None` if none does.
    #[inline]
    pub(crate) fn index(&self, offset: usize) -> Option<usize> {
        // Exact: offset < 2^18, and the reciprocal is too large by less than 1, so the product is
        // by less than 2^18; that is less than the distance to the next whole quotient,
        // 2^32 / size > 2^16, for the quotients that are whole; for others the comparison
        // below decides.
        let index = ((offset as u64 * self.reciprocal) >> 32) as usize;
        (index * self.size == offset && index < self.objects).then_some(index)
    }
}

/// The geometry of each class.
pub(crate) static SIZES: [Geometry; CLASSES] = {
    let mut all = [Geometry::new(ALIGN); CLASSES];
    let mut class = 0;
    while class < CLASSES {
        all[class] = Geometry::new(size_of_class(class));
        class += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Miri looks at some of them.
    const STEP: usize = if cfg!(miri) { 509 } else { 1 };

    #[test]
    fn every_size_has_the_smallest_class() {
        assert_eq!(size_of_class(CLASSES - 1), MAX_SIZE);
        for size in (1..=MAX_SIZE).step_by(STEP) {
            let class = class_of(size);
            assert!(size_of_class(class) >= size, "{size}");
            assert!(class == 0 || size_of_class(class - 1) < size, "{size}");
            let waste = size_of_class(class) - size;
            assert!(waste < ALIGN || waste * 16 <= size, "{size} wastes {waste}");
        }
    }

    #[test]
    fn every_slab_wastes_an_eighth_at_most() {
        let odd =
            (1..=MAX_SIZE_IN_SLAB / ALIGN).step_by(STEP).map(|units| Geometry::new(units * ALIGN));
        for geometry in SIZES.iter().copied().chain(odd) {
            let Geometry { size, slab_bytes, objects, slack, step, .. } = geometry;
            assert!(
                slab_bytes.is_power_of_two() && (UNIT..=64 * UNIT).contains(&slab_bytes),
                "{geometry:?}"
            );
            assert!((8..=MAX_OBJECTS).contains(&objects), "{geometry:?}");
            assert_eq!(HEADER + objects * size + slack, slab_bytes);
            assert!((slab_bytes - objects * size) * 8 <= slab_bytes, "{geometry:?}");
            assert_eq!((size % step, HEADER % step, step % ALIGN), (0, 0, 0), "{geometry:?}");
        }
    }

    #[test]
    fn every_address_is_an_object_or_none() {
        let largest = [16 << 10, 20_000, 24_592, MAX_SIZE_IN_SLAB].map(Geometry::new);
        for geometry in SIZES.iter().chain(&largest) {
            for offset in (0..geometry.slab_bytes).step_by(STEP) {
                let (index, rest) = (offset / geometry.size, offset % geometry.size);
                let expected = (rest == 0 && index < geometry.objects).then_some(index);
                assert_eq!(geometry.index(offset), expected, "{offset} of {geometry:?}");
            }
        }
    }

    #[test]
    fn alignment_has_a_class() {
        for size in (1..=MAX_SIZE).step_by(STEP) {
            for align in [1, 2, 4, 8, 16, 32, 64] {
                if let Some(class) = class_aligned(size, align) {
                    assert_eq!(
                        (size_of_class(class) % align, SIZES[class].step % align.max(16)),
                        (0, 0)
                    );
                    assert!(size_of_class(class) >= size && class - class_of(size) <= 3);
                } else {
                    panic!("{size} at {align} has no class");
                }
            }
        }
        assert_eq!(
            class_aligned(0, 1).or(class_aligned(1, 128)).or(class_aligned(MAX_SIZE + 1, 1)),
            None
        );
    }
}

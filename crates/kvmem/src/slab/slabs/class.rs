//! *Class*: the sizes of objects that requests are rounded up to.
//!
//! | sizes | step | most bytes that a request wastes |
//! |---|---|---|
//! | 1 … 512 | 16 | 15 bytes |
//! | 513 … 8192 | 1/16 of the power of two below | 6 % |

use super::geometry::{ALIGN, Geometry, MAX_ALIGN};

/// The largest size that has a class.
pub(crate) const MAX_SIZE: usize = 8192;
/// The number of classes in [`SIZES`].
pub(crate) const CLASSES: usize = FINE + 16 * 4;

/// The number of classes that are one [`ALIGN`] apart.
const FINE: usize = 32;

/// Returns the size of the objects of a class.
pub(crate) const fn size_of_class(class: usize) -> usize {
    if class < FINE {
        return (class + 1) * ALIGN;
    }
    let octave = (class - FINE) / 16;
    (512 << octave) + ((class - FINE) % 16 + 1) * (32 << octave)
}

/// The class of a size, indexed by the number of whole [`ALIGN`]s below it. A reference and not a
/// static: a crate that this is inlined into has its own copy and need not load its address.
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

/// Returns the smallest class for `size` bytes, 1 to [`MAX_SIZE`].
#[inline(always)]
pub(crate) fn class_of(size: usize) -> usize {
    usize::from(CLASS_OF[(size - 1) / ALIGN])
}

/// Returns the smallest class for `size` bytes at a multiple of `align`; `None` if there is none.
pub(crate) fn class_aligned(size: usize, align: usize) -> Option<usize> {
    if size == 0 || size > MAX_SIZE || align > MAX_ALIGN {
        return None;
    }
    (class_of(size)..CLASSES).find(|class| size_of_class(*class).is_multiple_of(align))
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::geometry::{HEADER, MAX_OBJECTS, MAX_SIZE_IN_SLAB};
    use super::super::page_span::UNIT;
    use super::*;

    /// Miri checks only some of the sizes.
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
    fn no_slab_wastes_more_than_an_eighth() {
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

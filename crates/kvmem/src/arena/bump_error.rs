//! *Bump error*: why an arena refused, as a small value.

use std::alloc::Layout;

use thiserror::Error;

/// Why a request was refused. The arena is as it was before the call.
///
/// ```
/// use kvmem::arena::{BumpArena, BumpError, HeapMemory};
///
/// let arena = BumpArena::new(HeapMemory::new(1024, 64)?);
/// assert_eq!(arena.alloc_bytes(0, 8), Err(BumpError::Zero));
/// assert_eq!(arena.alloc_bytes(8, 3), Err(BumpError::BadAlign { align: 3 }));
/// assert_eq!(arena.alloc_bytes(usize::MAX, 8), Err(BumpError::Overflow { requested: usize::MAX, align: 8 }));
/// assert_eq!(arena.alloc_bytes(1025, 8), Err(BumpError::Full { requested: 1025, left: 1024 }));
/// # Ok::<(), BumpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BumpError {
    /// No bytes were asked for.
    #[error("size 0 was asked for: ask for at least 1 byte")]
    Zero,
    /// The alignment is zero or not a power of two.
    #[error("alignment {align} is not a power of two")]
    BadAlign {
        /// The alignment asked for.
        align: usize,
    },
    /// No object can be that long: rounded up to its alignment, it would pass `isize::MAX` bytes.
    #[error(
        "{requested} bytes at alignment {align} are more than any object can have ({} bytes): ask for less",
        isize::MAX
    )]
    Overflow {
        /// Bytes asked for.
        requested: usize,
        /// The alignment asked for.
        align: usize,
    },
    /// Less is left than was asked for.
    #[error(
        "{requested} bytes were asked for, {left} are left at this alignment: make the arena larger, or reset it"
    )]
    Full {
        /// Bytes asked for.
        requested: usize,
        /// The most that could have been had at the alignment asked for: always less than `requested`.
        /// Bytes that only padding could use do not count.
        left: usize,
    },
}

impl BumpError {
    /// The layout of `size` ≥ 1 bytes at `align`, or what is wrong with it. Never
    /// [`BumpError::Full`].
    #[inline]
    pub(super) fn layout(size: usize, align: usize) -> Result<Layout, BumpError> {
        match Layout::from_size_align(size, align) {
            Ok(layout) if size != 0 => Ok(layout),
            _ => Err(Self::of_no_layout(size, align)),
        }
    }

    #[cold]
    fn of_no_layout(size: usize, align: usize) -> BumpError {
        if !align.is_power_of_two() {
            BumpError::BadAlign { align }
        } else if size == 0 {
            BumpError::Zero
        } else {
            BumpError::Overflow { requested: size, align }
        }
    }
}

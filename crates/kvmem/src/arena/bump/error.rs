//! *Bump error*: why a bump arena could not serve a request, as a small value.

use std::alloc::Layout;

use thiserror::Error;

/// The reason why a request failed. The arena is unchanged.
///
/// ```
/// use kvmem::arena::{BumpArena, BumpError, HeapMemory};
///
/// let arena = BumpArena::new(HeapMemory::new(1024, 64)?);
/// assert_eq!(arena.allocate_bytes(0, 8), Err(BumpError::Zero));
/// assert_eq!(arena.allocate_bytes(8, 3), Err(BumpError::BadAlign { align: 3 }));
/// let overflow = BumpError::Overflow { requested: usize::MAX, align: 8 };
/// assert_eq!(arena.allocate_bytes(usize::MAX, 8), Err(overflow));
/// let full = BumpError::Full { requested: 1025, remaining: 1024 };
/// assert_eq!(arena.allocate_bytes(1025, 8), Err(full));
/// # Ok::<(), BumpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BumpError {
    /// The requested size is 0.
    #[error("cannot allocate 0 bytes: request at least 1")]
    Zero,
    /// The alignment is zero or not a power of two.
    #[error("alignment {align} is not a power of two: use one, such as 64 or 4096")]
    BadAlign {
        /// The requested alignment.
        align: usize,
    },
    /// No object can be that large: rounded up to its alignment, it exceeds `isize::MAX` bytes.
    #[error(
        "cannot allocate {requested} bytes at alignment {align}: an object has at most {} bytes; \
         request less",
        isize::MAX
    )]
    Overflow {
        /// The requested size in bytes.
        requested: usize,
        /// The requested alignment.
        align: usize,
    },
    /// Fewer bytes are left than were requested.
    #[error(
        "cannot allocate {requested} bytes: {remaining} are left at this alignment; make the arena \
         larger, \
         or reset it"
    )]
    Full {
        /// The requested size in bytes.
        requested: usize,
        /// The largest size that would have succeeded at this alignment: always less than
        /// `requested`. Bytes that only padding could use do not count.
        remaining: usize,
    },
}

impl BumpError {
    /// Returns the layout of `size` bytes at `align`, or the error in one of them. Never returns
    /// [`BumpError::Full`].
    #[inline]
    pub(in crate::arena) fn layout(size: usize, align: usize) -> Result<Layout, BumpError> {
        match Layout::from_size_align(size, align) {
            Ok(layout) if size != 0 => Ok(layout),
            _ => Err(Self::invalid_layout(size, align)),
        }
    }

    #[cold]
    fn invalid_layout(size: usize, align: usize) -> BumpError {
        if !align.is_power_of_two() {
            BumpError::BadAlign { align }
        } else if size == 0 {
            BumpError::Zero
        } else {
            BumpError::Overflow { requested: size, align }
        }
    }
}

//! What can go wrong, as values: small, `Copy`, with the numbers in them.

use thiserror::Error;

/// Why an allocation, or a change of one, was refused. The state is as it was before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// A range of no bytes was asked for.
    #[error("size 0 was asked for: ask for at least 1 byte")]
    ZeroSize,
    /// The request can never be met in this space, however empty it is.
    #[error(
        "{requested} bytes were asked for, but no range here can be longer than {limit} bytes: \
         grow the space, widen its boundary, or ask for several ranges"
    )]
    TooLarge {
        /// Bytes asked for.
        requested: u64,
        /// The longest range this space could ever hand out: its capacity, or its boundary if that
        /// is less.
        limit: u64,
    },
    /// The alignment is zero or not a power of two.
    #[error("alignment {align} is not a power of two")]
    BadAlign {
        /// The alignment asked for.
        align: u64,
    },
    /// No range here is long enough to hold so large an alignment, however empty the space is.
    #[error(
        "{requested} bytes at a multiple of {align} were asked for, but no range here can be longer than {limit} bytes \
         and reach from one multiple to the next: ask for a smaller alignment"
    )]
    AlignTooLarge {
        /// Bytes asked for.
        requested: u64,
        /// The alignment asked for.
        align: u64,
        /// The longest range this space could ever hand out.
        limit: u64,
    },
    /// The request would fit into the empty space, but not into what is free now.
    #[error(
        "{requested} bytes were asked for; {free} bytes are free, the longest free range is at most \
         {largest_free}: free something, or ask for several ranges"
    )]
    OutOfSpace {
        /// Bytes asked for; those of all ranges together for a batch.
        requested: u64,
        /// Bytes free in the whole space when the request was refused.
        free: u64,
        /// Upper bound of the longest free range when the request was refused.
        largest_free: u64,
    },
    /// An allocation cannot be extended so far where it stands.
    #[error(
        "cannot extend to {requested} bytes in place: there is room for at most {most}; allocate anew and copy"
    )]
    Blocked {
        /// Size asked for, in bytes.
        requested: u64,
        /// Greatest size the allocation could have where it stands, in bytes.
        most: u64,
    },
    /// A scattered request allowed no range at all.
    #[error("{requested} bytes were asked for in at most 0 ranges: allow at least 1")]
    NoRanges {
        /// Bytes asked for.
        requested: u64,
    },
    /// A range or size lies outside of the allocation it was meant to change.
    #[error(
        "[{start}, {end}) is not a non-empty part of the allocation [{allocation_start}, {allocation_end})"
    )]
    OutOfBounds {
        /// First byte asked for.
        start: u64,
        /// One past the last byte asked for.
        end: u64,
        /// First byte of the allocation.
        allocation_start: u64,
        /// One past the last byte of the allocation.
        allocation_end: u64,
    },
    /// As many ranges as [`OffsetAllocatorBuilder::max_ranges`](super::OffsetAllocatorBuilder::max_ranges) allows, or about 2^32,
    /// used and free, are on the books: no more can be named.
    #[error(
        "the books are full: {ranges} ranges are in use or free; free some, allow more, or use a second space"
    )]
    TooManyRanges {
        /// Ranges on the books.
        ranges: u64,
    },
}

impl AllocError {
    /// The refusal of one of `n` ranges of `size` bytes as that of all of them.
    #[cold]
    pub(crate) fn of_batch(self, size: u64, n: usize) -> Self {
        match self {
            Self::OutOfSpace { free, largest_free, .. } => {
                Self::OutOfSpace { requested: size.saturating_mul(n as u64), free, largest_free }
            }
            other => other,
        }
    }

    /// The refusal of a longer range, out of which `size` bytes at a multiple of `align` were to be
    /// cut.
    #[cold]
    pub(crate) fn of_aligned(self, requested: u64, align: u64) -> Self {
        match self {
            Self::TooLarge { limit, .. } if requested <= limit => {
                Self::AlignTooLarge { requested, align, limit }
            }
            Self::TooLarge { limit, .. } => Self::TooLarge { requested, limit },
            Self::OutOfSpace { free, largest_free, .. } => {
                Self::OutOfSpace { requested, free, largest_free }
            }
            other => other,
        }
    }
}

/// Why a raw handle was refused. The state is as it was before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RawError {
    /// The handle was made by another allocator.
    #[error("the handle belongs to allocator {handle_of}, not to this one ({allocator})")]
    Foreign {
        /// Identity of the allocator that was asked.
        allocator: u64,
        /// Identity of the allocator that the handle names.
        handle_of: u64,
    },
    /// The handle was freed before, given up for an [`Allocation`](super::Allocation), or never
    /// handed out.
    #[error(
        "the handle (slot {slot}, generation {generation}) names no live allocation: it was freed before, \
         turned into an RAII handle, or never handed out"
    )]
    Stale {
        /// Slot in the handle.
        slot: u32,
        /// Generation in the handle.
        generation: u32,
    },
    /// The handle is good, but the change asked for was refused.
    #[error(transparent)]
    Refused(#[from] AllocError),
}

/// Why a space could not be made, grown or shrunk. The state is as it was before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// The capacity is zero or above 2^63 bytes.
    #[error("capacity {requested} is not within 1..={limit} bytes")]
    Capacity {
        /// Capacity asked for, in bytes.
        requested: u64,
        /// Greatest capacity, in bytes.
        limit: u64,
    },
    /// A boundary of zero was asked for.
    #[error(
        "boundary 0 would leave no range to hand out: leave the boundary out, or set it to at least 1 byte"
    )]
    ZeroBoundary,
    /// Too few ranges for any use.
    #[error("a space for at most {requested} ranges is of no use: allow {least} at least")]
    MaxRanges {
        /// Ranges asked for.
        requested: u32,
        /// The least that may be asked for.
        least: u32,
    },
    /// `grow` to less, or `shrink_to` to more, than the capacity there is.
    #[error(
        "the capacity is {capacity} bytes; {requested} is on the wrong side of it for this call"
    )]
    WrongDirection {
        /// Capacity now, in bytes.
        capacity: u64,
        /// Capacity asked for, in bytes.
        requested: u64,
    },
    /// The space cannot shrink below its last allocation.
    #[error(
        "cannot shrink to {requested} bytes: the last allocation ends at {end_of_last}; free or move what lies behind"
    )]
    InUse {
        /// Capacity asked for, in bytes.
        requested: u64,
        /// One past the last byte in use.
        end_of_last: u64,
    },
    /// The books are full (see [`AllocError::TooManyRanges`]).
    #[error("the books are full: {ranges} ranges are in use or free")]
    TooManyRanges {
        /// Ranges on the books.
        ranges: u64,
    },
}

/// A numbered invariant that does not hold: a defect of this library.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invariant {invariant} does not hold: {what}")]
pub struct CheckError {
    /// Number of the invariant in the list at the head of `check.rs`.
    pub invariant: u32,
    /// Where and how it is broken.
    pub what: String,
}

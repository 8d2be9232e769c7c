//! *Errors*: small `Copy` values that contain the numbers.

use thiserror::Error;

/// The reason why an allocation, or a change of one, failed. The state is the same as before the
/// call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The requested size is 0.
    #[error("size 0 was requested: ask for at least 1 byte")]
    ZeroSize,
    /// The request can never succeed in this space, even if it is empty.
    #[error(
        "{requested} bytes were requested, but no range here can be longer than {limit} bytes: \
         grow the space, widen its boundary, or ask for several ranges"
    )]
    TooLarge {
        /// Requested bytes.
        requested: u64,
        /// The longest range that this space could ever allocate: its capacity, or its boundary if
        /// that is less.
        limit: u64,
    },
    /// The alignment is zero or not a power of two.
    #[error("alignment {align} is not a power of two: round it up to one")]
    BadAlign {
        /// The requested alignment.
        align: u64,
    },
    /// No range of this space is long enough to contain such an alignment, even if the space is
    /// empty.
    #[error(
        "{requested} bytes at a multiple of {align} were requested, but no range here can be \
         longer than \
         {limit} bytes and reach from one multiple to the next: ask for a smaller alignment"
    )]
    AlignTooLarge {
        /// Requested bytes.
        requested: u64,
        /// The requested alignment.
        align: u64,
        /// The longest range that this space could ever allocate.
        limit: u64,
    },
    /// The request fits into the empty space, but not into what is free now.
    #[error(
        "{requested} bytes were requested; {free} bytes are free, the longest free range is at \
         most {largest_free}: free something, or ask for several ranges"
    )]
    OutOfSpace {
        /// Requested bytes; those of all ranges together for a batch.
        requested: u64,
        /// Free bytes of the whole space when the request failed; with magazines above a cut space,
        /// up to a sixteenth of the space less.
        free: u64,
        /// Upper bound of the longest free range when the request failed.
        largest_free: u64,
    },
    /// The requested range is not wholly free, or not within the space, or crosses a boundary.
    #[error(
        "[{start}, {end}) was requested, which is not one free range of the {capacity} bytes here: \
         allocate without a place, or free what is in it"
    )]
    NotFree {
        /// First requested byte.
        start: u64,
        /// One past the last requested byte.
        end: u64,
        /// Bytes of the space.
        capacity: u64,
    },
    /// An allocation cannot be extended that far in place.
    #[error(
        "cannot extend to {requested} bytes in place: there is room for at most {max}; \
         allocate a new range and copy"
    )]
    CannotExtend {
        /// Requested size, in bytes.
        requested: u64,
        /// The greatest size that the allocation could have in place, in bytes.
        max: u64,
    },
    /// A scattered request allows no range at all.
    #[error("{requested} bytes were requested in at most 0 ranges: allow at least 1")]
    NoRanges {
        /// Requested bytes.
        requested: u64,
    },
    /// A range or size is outside of the allocation that it should change.
    #[error(
        "[{start}, {end}) is not a non-empty part of the allocation \
         [{allocation_start}, {allocation_end})"
    )]
    OutOfBounds {
        /// First requested byte.
        start: u64,
        /// One past the last requested byte.
        end: u64,
        /// First byte of the allocation.
        allocation_start: u64,
        /// One past the last byte of the allocation.
        allocation_end: u64,
    },
    /// The limit of the number of ranges, used and free, is reached:
    /// [`OffsetAllocatorBuilder::max_ranges`](super::OffsetAllocatorBuilder::max_ranges), or about
    /// 2^32.
    #[error(
        "no node is left for another range: {ranges} ranges, used and free, are the limit; \
         free some, raise the limit, or use a second space"
    )]
    TooManyRanges {
        /// Number of ranges, used and free.
        ranges: u64,
    },
}

impl AllocError {
    /// Returns the error of a batch of `n` ranges of `size` bytes, from that of one of them.
    #[cold]
    pub(crate) fn of_batch(self, size: u64, n: usize) -> Self {
        match self {
            Self::OutOfSpace { free, largest_free, .. } => {
                Self::OutOfSpace { requested: size.saturating_mul(n as u64), free, largest_free }
            }
            other => other,
        }
    }

    /// Returns the error of an aligned request of `requested` bytes, from that of the longer range
    /// out of which it would be cut.
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

/// The reason why a raw handle was not accepted. The state is the same as before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RawError {
    /// The handle was created by another allocator.
    #[error("the handle belongs to allocator {handle_of}, not to this one ({allocator})")]
    Foreign {
        /// Identity of the allocator that was called.
        allocator: u64,
        /// Identity of the allocator in the handle.
        handle_of: u64,
    },
    /// The handle was freed before, turned into an [`Allocation`](super::Allocation), or never
    /// issued.
    #[error(
        "the handle (slot {slot}, generation {generation}) identifies no live allocation: \
         it was freed before, turned into an RAII handle, or never issued"
    )]
    Stale {
        /// Slot in the handle.
        slot: u32,
        /// Generation in the handle.
        generation: u32,
    },
    /// The handle is valid, but the requested change failed.
    #[error(transparent)]
    Failed(#[from] AllocError),
}

/// The reason why a space could not be created, grown or shrunk. The state is the same as before
/// the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// The capacity is zero or above 2^63 bytes.
    #[error("capacity {requested} is not within 1..={limit} bytes: choose one that is")]
    Capacity {
        /// Requested capacity, in bytes.
        requested: u64,
        /// Greatest capacity, in bytes.
        limit: u64,
    },
    /// The requested boundary is 0.
    #[error("boundary 0 allows no range: leave the boundary out, or set it to at least 1 byte")]
    ZeroBoundary,
    /// The limit of the number of ranges is too low to be useful.
    #[error("the limit of {requested} ranges is too low: allow at least {min}")]
    MaxRanges {
        /// Requested limit.
        requested: u32,
        /// The least limit that is allowed.
        min: u32,
    },
    /// A space cannot be cut into that many shards.
    #[error(
        "{requested} shards were requested, but this space can have 1 to {max}: ask for as many, \
         or lower its boundary if it has one"
    )]
    Shards {
        /// Requested number of shards.
        requested: u32,
        /// The most shards that this space can have.
        max: u32,
    },
    /// `grow` to less, or `shrink_to` to more, than the current capacity.
    #[error(
        "{requested} bytes are on the wrong side of the capacity, {capacity} bytes, for this call: \
         `grow` takes more, `shrink_to` less"
    )]
    WrongDirection {
        /// Current capacity, in bytes.
        capacity: u64,
        /// Requested capacity, in bytes.
        requested: u64,
    },
    /// The space cannot shrink below its last allocation.
    #[error(
        "cannot shrink to {requested} bytes: the last allocation ends at {end_of_last}; \
         free or move the allocations behind the new end"
    )]
    InUse {
        /// Requested capacity, in bytes.
        requested: u64,
        /// One past the last byte in use.
        end_of_last: u64,
    },
    /// The limit of the number of ranges is reached (see [`AllocError::TooManyRanges`]).
    #[error(
        "no node is left for another range: {ranges} ranges, used and free, are the limit; \
         free some"
    )]
    TooManyRanges {
        /// Number of ranges, used and free.
        ranges: u64,
    },
}

/// A numbered invariant that is broken: a defect of this library.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invariant {invariant} does not hold: {what}")]
pub struct CheckError {
    /// Number of the invariant in the list at the head of `heap/ranges/check.rs`.
    pub invariant: u32,
    /// Where and how it is broken.
    pub what: String,
}

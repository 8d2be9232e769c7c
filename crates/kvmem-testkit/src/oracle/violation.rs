//! Actions that the oracle rejects.

use std::ops::Range;

use thiserror::Error;

/// An action that no correct allocator takes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ViolationError {
    /// A range of no bytes was granted.
    #[error("an empty range at {0} was granted")]
    Empty(u64),
    /// A granted range leaves the space.
    #[error("[{}, {}) was granted in a space of {capacity} bytes", range.start, range.end)]
    OutOfSpace {
        /// The granted range.
        range: Range<u64>,
        /// Length of the space.
        capacity: u64,
    },
    /// A granted range is not wholly free.
    #[error("[{}, {}) was granted, but not all of it is free", range.start, range.end)]
    Overlap {
        /// The granted range.
        range: Range<u64>,
    },
    /// A granted range crosses a boundary.
    #[error("[{}, {}) was granted across a multiple of {boundary}", range.start, range.end)]
    Straddles {
        /// The granted range.
        range: Range<u64>,
        /// The boundary.
        boundary: u64,
    },
    /// A range was freed or changed that is not in use.
    #[error("no range in use begins at {0}")]
    NotUsed(u64),
    /// A part was freed that is not within its range.
    #[error("[{}, {}) is not a part of [{}, {})", part.start, part.end, whole.start, whole.end)]
    NotPart {
        /// The part.
        part: Range<u64>,
        /// The range in use.
        whole: Range<u64>,
    },
    /// The end of the space was moved into a range in use.
    #[error("the space was shrunk to {capacity} bytes, but a used range ends at {end_of_last}")]
    CutOff {
        /// Length of the space afterwards.
        capacity: u64,
        /// One past the last byte in use.
        end_of_last: u64,
    },
}

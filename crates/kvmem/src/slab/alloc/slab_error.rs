//! *Slab error*: why an allocation failed.

use thiserror::Error;

/// The reason why an allocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum SlabError {
    /// The requested size is 0.
    #[error("cannot allocate a block of 0 bytes; request at least 1 byte")]
    ZeroSize,
    /// The requested size exceeds what an address space can hold.
    #[error(
        "cannot allocate a block of {requested} bytes: an address space holds at most {max} bytes; \
         request a smaller block"
    )]
    TooLarge {
        /// The requested size, in bytes.
        requested: usize,
        /// The limit, in bytes.
        max: usize,
    },
    /// No memory is left: the system provides no more, or the region is full.
    #[error(
        "cannot allocate a block of {requested} bytes: no memory is left; raise the memory limit \
         of \
         the process, or give the allocator a larger region"
    )]
    NoMemory {
        /// The requested size, in bytes.
        requested: usize,
    },
}

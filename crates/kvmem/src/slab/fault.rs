//! *Fault*: a misuse that was found, and who is told.

use std::fmt;
use std::sync::Arc;

/// A misuse of an allocator of objects.
///
/// Addresses are those that the caller gave or was given. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SlabFault {
    /// A block was freed that is free already.
    DoubleFree {
        /// The block.
        address: usize,
        /// With debugging, what had been asked for; else the size of its class.
        size: usize,
    },
    /// A block was freed with another size than it was allocated with.
    WrongSize {
        /// The block.
        address: usize,
        /// What was asked for; without debugging, the size of its class.
        allocated: usize,
        /// What was given when freeing; without debugging, the size of that class.
        freed: usize,
    },
    /// What was freed is no block of this allocator.
    Foreign {
        /// What was given when freeing.
        address: usize,
        /// As above.
        size: usize,
    },
    /// A block was written to after it had been freed.
    WriteAfterFree {
        /// The block.
        address: usize,
        /// What had been asked for.
        size: usize,
        /// The first byte of the block that is not as freeing left it.
        offset: usize,
    },
    /// The allocator went while a block was in use.
    Leak {
        /// The block.
        address: usize,
        /// What was asked for.
        size: usize,
    },
}

impl SlabFault {
    /// The address that it is about.
    #[must_use]
    pub fn address(&self) -> usize {
        match *self {
            SlabFault::DoubleFree { address, .. }
            | SlabFault::WrongSize { address, .. }
            | SlabFault::Foreign { address, .. }
            | SlabFault::WriteAfterFree { address, .. }
            | SlabFault::Leak { address, .. } => address,
        }
    }
}

impl fmt::Display for SlabFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            SlabFault::DoubleFree { address, size } => {
                write!(f, "double free: the block of {size} bytes at {address:#x} is free already")
            }
            SlabFault::WrongSize { address, allocated, freed } => write!(
                f,
                "wrong size: the block at {address:#x} was allocated with {allocated} bytes and freed with {freed}"
            ),
            SlabFault::Foreign { address, size } => write!(
                f,
                "foreign pointer: {address:#x}, freed with {size} bytes, is no block of this allocator"
            ),
            SlabFault::WriteAfterFree { address, size, offset } => write!(
                f,
                "write after free: byte {offset} of the block of {size} bytes at {address:#x} was changed after it was freed"
            ),
            SlabFault::Leak { address, size } => {
                write!(f, "leak: the block of {size} bytes at {address:#x} was never freed")
            }
        }
    }
}

/// Who is told of a fault. When it returns, the operation is left out, and the allocator goes on
/// unharmed.
pub(crate) type FaultHook = Arc<dyn Fn(&SlabFault) + Send + Sync>;

/// Says it on the standard error stream, and ends the process: at once, unless it is a leak, which
/// harms nobody.
pub(crate) fn abort(fault: &SlabFault) {
    eprintln!("kvmem: {fault}");
    if !matches!(fault, SlabFault::Leak { .. }) {
        std::process::abort();
    }
}

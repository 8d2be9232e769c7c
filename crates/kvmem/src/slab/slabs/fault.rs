//! *Fault*: a detected misuse of an allocator, and the hook that is called for it.

use std::fmt;
use std::sync::Arc;

/// A detected misuse of a slab allocator.
///
/// Addresses are those that the caller passed or received. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SlabFault {
    /// A block was freed twice.
    DoubleFree {
        /// Address of the block.
        address: usize,
        /// The requested size with debugging; otherwise the size of the block's class.
        size: usize,
    },
    /// A block was freed with another size than it was allocated with.
    WrongSize {
        /// Address of the block.
        address: usize,
        /// The size at the allocation; without debugging, the size of its class.
        allocated: usize,
        /// The size at the free; without debugging, the size of its class.
        freed: usize,
    },
    /// The freed address is no block of this allocator.
    Foreign {
        /// The freed address.
        address: usize,
        /// The size at the free; without debugging, the size of its class.
        size: usize,
    },
    /// A block was written to after it was freed.
    WriteAfterFree {
        /// Address of the block.
        address: usize,
        /// The requested size.
        size: usize,
        /// Offset of the first changed byte in the block.
        offset: usize,
    },
    /// The allocator was dropped while a block was in use.
    Leak {
        /// Address of the block.
        address: usize,
        /// The requested size.
        size: usize,
    },
}

impl SlabFault {
    /// Returns the address that the fault is about.
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
                write!(f, "double free: the block of {size} bytes at {address:#x} was freed before")
            }
            SlabFault::WrongSize { address, allocated, freed } => write!(
                f,
                "wrong size: the block at {address:#x} was allocated with {allocated} bytes \
                 and freed with {freed} bytes"
            ),
            SlabFault::Foreign { address, size } => write!(
                f,
                "foreign pointer: {address:#x}, freed with {size} bytes, is no block of this \
                 allocator"
            ),
            SlabFault::WriteAfterFree { address, size, offset } => write!(
                f,
                "write after free: byte {offset} of the block of {size} bytes at {address:#x} \
                 was changed after the free"
            ),
            SlabFault::Leak { address, size } => {
                write!(f, "leak: the block of {size} bytes at {address:#x} was never freed")
            }
        }
    }
}

/// The hook for faults. After it returns, the faulty operation is skipped and the allocator
/// continues unharmed.
pub(crate) type FaultHook = Arc<dyn Fn(&SlabFault) + Send + Sync>;

/// Prints the fault to standard error and aborts the process, except for a leak, which harms no
/// other block.
pub(crate) fn abort_on_fault(fault: &SlabFault) {
    eprintln!("kvmem: {fault}");
    if !matches!(fault, SlabFault::Leak { .. }) {
        std::process::abort();
    }
}

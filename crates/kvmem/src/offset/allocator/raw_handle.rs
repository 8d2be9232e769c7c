//! *Raw handles*: allocations identified by plain data, for C and Python.
//!
//! A raw handle can be copied, kept too long, freed twice or passed to the wrong allocator. It
//! contains the identity of its allocator (valid within one process), the slot of its range, and
//! the [*generation*](super::generations) that the slot received when the handle was issued. Every
//! misuse is detected, in release builds too, and changes nothing.

/// Plain data that identifies an allocation: 16 bytes; any bits are safe to pass back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawHandle {
    pub(crate) allocator: u64,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl RawHandle {
    /// Returns the handle as one number, which is never 0.
    pub fn to_bits(self) -> u128 {
        u128::from(self.allocator) << 64 | u128::from(self.slot) << 32 | u128::from(self.generation)
    }

    /// Returns the handle that [`to_bits`](Self::to_bits) converted. Any number is safe: the
    /// allocator rejects one that is no handle of its own.
    pub fn from_bits(bits: u128) -> Self {
        RawHandle {
            allocator: (bits >> 64) as u64,
            slot: (bits >> 32) as u32,
            generation: bits as u32,
        }
    }
}

/// An allocation made through the raw interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawAllocation {
    /// Identifies it.
    pub handle: RawHandle,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its length, in bytes: the requested size.
    pub size: u64,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bits_round_trip() {
        let handle = RawHandle { allocator: u64::MAX - 1, slot: 7, generation: u32::MAX };
        assert_eq!(RawHandle::from_bits(handle.to_bits()), handle);
    }
}

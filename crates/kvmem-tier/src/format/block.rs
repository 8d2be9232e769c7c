//! *Block*: the unit of everything in the file, and the reading and writing of its fields.

use crate::crc;

/// Bytes of a block.
pub const BLOCK: usize = 4096;

/// Reads and writes the fields of a block one after the other.
pub(super) struct Fields<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a mut [u8]) -> Self {
        Fields { bytes, at: 0 }
    }

    pub(super) fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }
}

/// Takes the fields of a block one after the other.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    /// Takes `N` bytes; zeros behind the end, which no caller reads.
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *field
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// Returns the checksum of a block whose own field of four bytes at `field` counts as zeros.
pub(super) fn checksum(block: &[u8], field: usize) -> u32 {
    let sum = crc::append(0, &block[..field]);
    let sum = crc::append(sum, &[0; 4]);
    crc::append(sum, &block[field + 4..])
}

/// Puts the checksum into its field.
pub(super) fn seal(block: &mut [u8], field: usize) {
    let sum = checksum(block, field);
    block[field..field + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Returns whether the field has the checksum of the block.
pub(super) fn is_sealed(block: &[u8], field: usize) -> bool {
    block[field..field + 4] == checksum(block, field).to_le_bytes()
}

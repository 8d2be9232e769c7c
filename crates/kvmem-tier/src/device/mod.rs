//! *Device*: where the blocks are. A file or a block device, or a simulated disk in tests.

mod buffer;
mod file;
mod memory;
mod rings;
mod threads;
mod transfer;

use std::io;

pub use buffer::AlignedBuffer;
pub use file::{Engine, FileDevice};
pub use memory::MemoryDevice;

/// Bytes to write at an offset.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Where they begin in the device: a multiple of the block.
    pub at: u64,
    /// The bytes, in up to two parts, one behind the other: whole blocks of memory in place, and
    /// the padded last block.
    pub parts: [&'a [u8]; 2],
}

/// Bytes to read from an offset.
#[derive(Debug)]
pub struct Read<'a> {
    /// Where they begin in the device: a multiple of the block.
    pub at: u64,
    /// Where they go, in up to two parts, one behind the other.
    pub parts: [&'a mut [u8]; 2],
}

/// A device of blocks that several threads use at once.
///
/// Offsets and lengths are multiples of [`BLOCK`](crate::format::BLOCK), and the memory begins at
/// multiples of [`memory_align`](Self::memory_align). A transfer succeeds whole or fails: an
/// implementation continues short ones.
pub trait Device: Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> u64;

    /// Returns whether the device was made by opening it: nothing can be lost on it.
    fn is_new(&self) -> bool;

    /// Returns the alignment of memory that the device needs, in bytes: a power of two.
    fn memory_align(&self) -> usize;

    /// Writes all of `batch`, several at a time; returns the result of each, in the same order.
    /// The bytes survive the process once this returns, and a power cut only after
    /// [`sync`](Self::sync).
    fn write(&self, batch: &[Write<'_>]) -> Vec<io::Result<()>>;

    /// Reads all of `batch`, several at a time; returns the result of each, in the same order.
    fn read(&self, batch: &mut [Read<'_>]) -> Vec<io::Result<()>>;

    /// Makes durable all that has been written.
    ///
    /// # Errors
    /// The system's error: what was written may be lost.
    fn sync(&self) -> io::Result<()>;

    /// Returns whether the device has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

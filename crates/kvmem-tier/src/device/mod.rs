//! *Device*: where the blocks are. A file or a block device, or a simulated disk in tests.

mod batch;
mod buffer;
mod buffer_table;
mod counts;
mod direct;
mod file;
mod fixed;
mod memory;
mod priority;
mod rings;
mod sync;
mod transfer;
mod workers;

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Instant;

pub use buffer::AlignedBuffer;
pub use buffer_table::FixedBufferStats;
pub use direct::UnsupportedAlignment;
pub use file::{Engine, FileDevice};
pub use fixed::FixedBuffersError;
pub use memory::MemoryDevice;

use crate::format::BLOCK;

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
/// A *batch* is some transfers of one call, of which the device has several in flight. The call
/// lets its thread work meanwhile: on a value that is being written, and on each value that has
/// been read while others still are.
///
/// Offsets, and the lengths of writes, are multiples of [`BLOCK`]. The length
/// of a read is a multiple of [`read_align`](Self::read_align). The memory begins at multiples of
/// [`memory_align`](Self::memory_align). A transfer succeeds whole or fails: an implementation
/// continues short ones.
pub trait Device: Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> u64;

    /// Returns whether the device was made by opening it: nothing can be lost on it.
    fn is_new(&self) -> bool;

    /// Returns the alignment of memory that the device needs, in bytes: a power of two, at most
    /// that of the block.
    fn memory_align(&self) -> usize;

    /// Returns the alignment of the length of a read, in bytes: a power of two, at most that of the
    /// block.
    fn read_align(&self) -> usize {
        BLOCK
    }

    /// Returns whether a write is durable when it is complete. If not, a [`sync`](Self::sync) makes
    /// it durable.
    fn writes_are_durable(&self) -> bool {
        false
    }

    /// Keeps a file open until no transfer of the device can read or write memory any more, also
    /// after this process was killed. By default it is closed at once: transfers end with the calls
    /// of the device.
    ///
    /// # Errors
    /// The system's error.
    fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
        drop(file);
        Ok(())
    }

    /// Returns the time by which a tier pauses before it reads again what could not be read, and
    /// before it begins a failed journal anew. A simulated device has a time of its own.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Returns what is registered as fixed buffers, and how many transfers have used it. By default
    /// there are none.
    fn fixed_buffers(&self) -> FixedBufferStats {
        FixedBufferStats::default()
    }

    /// Returns whether another host may have the device open, of which the kernel of this one knows
    /// nothing: a block device, or a file of a network.
    fn may_be_shared(&self) -> bool {
        false
    }

    /// Returns whether the device may be [cut](Self::cut) off, as a file.
    fn can_be_cut(&self) -> bool {
        false
    }

    /// Makes the device `len` bytes long, which is less than it has. No transfer is in flight.
    ///
    /// # Errors
    /// The system's error: the length is as before.
    fn cut(&mut self, len: u64) -> io::Result<()> {
        let _ = len;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the next bytes at or behind `at` that may be others than zeros, as far as that is
    /// known without reading; `None` if there are none. By default all bytes may be.
    ///
    /// # Errors
    /// The system's error: the device does not know.
    fn next_data(&self, at: u64) -> io::Result<Option<Range<u64>>> {
        Ok((at < self.len()).then(|| at..self.len()))
    }

    /// Writes all of `batch`, several at a time; returns the result of each, in the same order.
    /// The bytes survive the process once this returns, and a power cut only after
    /// [`sync`](Self::sync), or if [writes are durable](Self::writes_are_durable).
    ///
    /// Calls `meanwhile` once for each index of the batch, in this thread and in order, preferably
    /// while that transfer or another one is in flight.
    fn write(&self, batch: &[Write<'_>], meanwhile: &mut dyn FnMut(usize)) -> Vec<io::Result<()>>;

    /// Reads all of `batch`, several at a time. Calls `done` once for each, in this thread and in
    /// any order, with its index in the batch, the read with its bytes, and its result. Others are
    /// preferably in flight meanwhile. The bytes mean something only if the result is `Ok`.
    fn read(
        &self,
        batch: &mut [Read<'_>],
        done: &mut dyn FnMut(usize, &mut Read<'_>, io::Result<()>),
    );

    /// Reads all of `batch` as [`read`](Self::read) does. Calls `meanwhile` in this thread until it
    /// returns false, preferably while reads are in flight.
    fn read_meanwhile(
        &self,
        batch: &mut [Read<'_>],
        meanwhile: &mut dyn FnMut() -> bool,
        done: &mut dyn FnMut(usize, &mut Read<'_>, io::Result<()>),
    ) {
        self.read(batch, done);
        while meanwhile() {}
    }

    /// Makes durable all that has been written.
    ///
    /// # Errors
    /// The system's error: what was written may be lost.
    fn sync(&self) -> io::Result<()>;

    /// Begins to make durable all that has been written before, without waiting for the end. The
    /// caller begins no other one before [`end_sync`](Self::end_sync) has returned its result, and
    /// may [sync](Self::sync) meanwhile.
    ///
    /// # Errors
    /// The system's error: what was written may be lost.
    fn begin_sync(&self) -> io::Result<()> {
        self.sync()
    }

    /// Returns the result of the sync that has begun, once; `None` while it is not complete. With
    /// `wait` it waits for that.
    fn end_sync(&self, wait: bool) -> Option<io::Result<()>> {
        let _ = wait;
        Some(Ok(()))
    }

    /// Writes whole blocks to a multiple of the block.
    ///
    /// # Errors
    /// The system's error: any part of the bytes may be written.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(&[Write { at, parts: [bytes, &[]] }], &mut |_| {}).remove(0)
    }

    /// Reads whole blocks from a multiple of the block.
    ///
    /// # Errors
    /// The system's error: the bytes mean nothing then.
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut result = Ok(());
        self.read(&mut [Read { at, parts: [bytes, &mut []] }], &mut |_, _, done| result = done);
        result
    }

    /// Returns whether the device has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

//! *Tables* of fixed buffers: those of a ring.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use io_uring::IoUring;
use kvmem::register;

/// Counts of the transfers of a device through fixed buffers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FixedBufferStats {
    /// Bytes that are registered.
    pub bytes: u64,
    /// Transfers that used a fixed buffer.
    pub transfers: u64,
}

/// A registered buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) handle: u64,
    pub(super) slot: u16,
}

/// The buffers of a ring, in address order.
#[derive(Clone, Debug, Default)]
pub(super) struct BufferTable {
    pub(super) buffers: Vec<Buffer>,
    /// The ring that has registered them; `None` without any.
    pub(super) source: Option<Arc<register::IoUring>>,
}

impl BufferTable {
    /// Returns the slot of the buffer that has all of `len` bytes at `start`.
    pub(super) fn slot_of(&self, start: *const u8, len: usize) -> Option<u16> {
        let start = start.addr();
        let before = self.buffers.partition_point(|buffer| buffer.start <= start);
        let buffer = self.buffers.get(before.checked_sub(1)?)?;
        (len <= buffer.end.saturating_sub(start)).then_some(buffer.slot)
    }

    /// Returns the bytes of all buffers.
    pub(super) fn bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| (buffer.end - buffer.start) as u64).sum()
    }

    /// Replaces the table of a ring by this one. A ring on which that fails has none.
    pub(super) fn clone_to(&self, ring: &IoUring) -> io::Result<()> {
        let ring = ring.submitter();
        // It has none the first time.
        let _ = ring.unregister_buffers();
        match &self.source {
            Some(source) => ring.register_buffers_clone(source.as_fd().as_raw_fd()),
            None => Ok(()),
        }
    }
}

//! *Fixed buffers*: memory that is registered with the rings of a device.
//!
//! The kernel looks up and pins the pages of each transfer, unless it does so once for all: a
//! transfer names a registered buffer by its place in a table of the ring. Each thread's transfers
//! have a ring of their own, so each ring needs the table. One more ring, the *source*, to which
//! nothing is submitted, registers the memory; the others clone its table (Linux 6.12), which pins
//! nothing again. A ring is brought up to date when a thread takes it.
//!
//! Registered memory stays mapped, with its pages, since `kvmem` holds its region and forbids
//! to discard them until it is deregistered.
//!
//! A transfer of two parts, or of memory that is not all in one buffer, is made as before.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::IoUring;
use kvmem::pool::PoolError;
use kvmem::register::{self, Key, Limits, NotAvailable, RegisterError, Registrar, RegistrarError};
use thiserror::Error;

use super::buffer_table::{Buffer, BufferTable};
use super::rings::RingPool;

/// The reason why memory is not registered. Transfers are made without fixed buffers.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FixedBuffersError {
    /// The device transfers by threads.
    #[error("the device transfers without io_uring, which alone has fixed buffers")]
    NoRings,
    /// The ring that registers cannot be made.
    #[error(transparent)]
    NotAvailable(#[from] NotAvailable),
    /// A ring cannot clone the table of another one.
    #[error("fixed buffers are shared by the rings of a device since Linux 6.12: {0}")]
    Clone(io::Error),
    /// The pool is being provisioned, or its memory cannot be pinned, for example beyond
    /// `RLIMIT_MEMLOCK`.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The memory of a region cannot be pinned.
    #[error(transparent)]
    Region(#[from] RegisterError),
}

/// Registers memory with all rings of a device.
#[derive(Debug)]
pub(super) struct FixedBuffers {
    source: Arc<register::IoUring>,
    rings: Arc<RingPool>,
}

impl FixedBuffers {
    /// Creates the source of the rings' tables.
    pub(super) fn new(rings: &Arc<RingPool>) -> Result<FixedBuffers, FixedBuffersError> {
        let source = Arc::new(register::IoUring::new(0)?);
        let table = BufferTable { buffers: Vec::new(), source: Some(Arc::clone(&source)) };
        // The source has a table of empty slots, by which a kernel shows that it clones tables.
        let probe = IoUring::new(1).map_err(FixedBuffersError::Clone)?;
        table.clone_to(&probe).map_err(FixedBuffersError::Clone)?;
        Ok(FixedBuffers { source, rings: Arc::clone(rings) })
    }

    /// Changes the table for all batches that begin from now on.
    fn change(&self, change: impl FnOnce(&mut Vec<Buffer>)) {
        self.rings.set_table(|table| {
            let mut buffers = table.buffers.clone();
            change(&mut buffers);
            let source = (!buffers.is_empty()).then(|| Arc::clone(&self.source));
            BufferTable { buffers, source }
        });
    }
}

impl Registrar for FixedBuffers {
    fn name(&self) -> &str {
        "disk_tier"
    }

    fn limits(&self) -> Limits {
        let limits = self.source.limits();
        // A transfer has one buffer, so these are as long as possible.
        Limits { device: self.name().to_owned(), preferred_chunk_bytes: None, ..limits }
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        // SAFETY: the caller promises the conditions of this very function. Transfers into the
        // buffer are those of callers that lend the memory to them.
        let key = unsafe { self.source.register(at, len) }?;
        let start = at.addr().get();
        // The table has at most 2^14 slots.
        let buffer = Buffer { start, end: start + len, handle: key.handle, slot: key.lkey as u16 };
        self.change(|buffers| {
            let place = buffers.partition_point(|other| other.start < start);
            buffers.insert(place, buffer);
        });
        Ok(key)
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        // First the clones, so that the memory is not pinned any more when this returns. A ring in
        // use has its table until its batch is done, which uses other memory.
        self.change(|buffers| buffers.retain(|buffer| buffer.handle != key.handle));
        self.source.deregister(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_has_the_buffer_that_has_all_of_it() {
        let buffer = |start, end, slot| Buffer { start, end, handle: 0, slot };
        let buffers = vec![buffer(4096, 8192, 7), buffer(8192, 12_288, 3)];
        let table = BufferTable { buffers, source: None };
        let slot = |start: usize, len| table.slot_of(std::ptr::without_provenance(start), len);
        assert_eq!(slot(4096, 4096), Some(7));
        assert_eq!(slot(5000, 3192), Some(7));
        assert_eq!(slot(5000, 3193), None);
        assert_eq!((slot(8192, 1), slot(8192, 4096)), (Some(3), Some(3)));
        assert_eq!((slot(4095, 1), slot(12_288, 1), slot(20_000, 1)), (None, None, None));
        assert_eq!(
            (table.bytes(), BufferTable::default().slot_of(&raw const table as _, 1)),
            (8192, None)
        );
    }
}

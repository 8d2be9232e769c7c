//! *Sync*: makes a file durable while its threads go on.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, types};

/// A sync that a ring makes.
#[derive(Default)]
pub(super) struct Sync {
    ring: Option<IoUring>,
    /// The result of a sync that needed no ring.
    result: Option<io::Result<()>>,
}

impl Sync {
    /// Begins to sync a file. Waits for the end if there is no ring.
    pub(super) fn begin(&mut self, file: BorrowedFd<'_>, with_ring: bool) {
        if !(with_ring && self.submit(file).is_ok()) {
            // An entry that was not submitted ends with the ring.
            self.ring = None;
            self.result = Some(rustix::fs::fdatasync(file).map_err(io::Error::from));
        }
    }

    fn submit(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        let ring = match &mut self.ring {
            Some(ring) => ring,
            none => none.insert(IoUring::new(1)?),
        };
        let sync = opcode::Fsync::new(types::Fd(file.as_raw_fd()));
        let entry = sync.flags(types::FsyncFlags::DATASYNC).build();
        // SAFETY: the entry names no memory.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        match ring.submit()? {
            1 => Ok(()),
            _ => Err(io::ErrorKind::Interrupted.into()),
        }
    }

    /// Returns the result; `None` if the sync is not complete, and `wait` is not set.
    pub(super) fn end(&mut self, wait: bool) -> Option<io::Result<()>> {
        if let Some(result) = self.result.take() {
            return Some(result);
        }
        let ring = self.ring.as_mut()?;
        loop {
            if let Some(completed) = ring.completion().next() {
                return Some(match completed.result() {
                    error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                    _ => Ok(()),
                });
            }
            if !wait {
                return None;
            }
            // An interrupted wait is repeated.
            if ring.submit_and_wait(1).is_err() {
                std::thread::yield_now();
            }
        }
    }
}

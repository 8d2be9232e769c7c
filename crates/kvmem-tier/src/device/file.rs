//! *File device*: a regular file or a block device, with direct I/O where the file system has it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FlockOperation, OFlags, SeekFrom};
use rustix::io::Errno;

use super::rings::RingPool;
use super::threads;
use super::transfer::Transfer;
use super::{Device, Read, Write};
use crate::format::BLOCK;

/// How a file device transfers a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// By io_uring: one thread has many transfers in flight.
    IoUring,
    /// By threads that read and write, since this process may have no ring. Slower.
    Threads,
}

/// A file or block device.
pub struct FileDevice {
    file: File,
    len: u64,
    new: bool,
    direct: bool,
    depth: u32,
    rings: Option<RingPool>,
}

/// Threads of a batch without io_uring, at most.
const MAX_THREADS: u32 = 16;

impl FileDevice {
    /// Opens a file or block device of which nobody else makes a tier, and makes a new or shorter
    /// file `len` bytes long, with its space allocated. A length of 0 keeps that of the file. A
    /// thread has up to `depth` transfers in flight.
    ///
    /// # Errors
    /// The system's error: `EWOULDBLOCK` if another process has it open as a tier, for three
    /// seconds.
    pub fn open(path: &Path, len: u64, depth: u32) -> io::Result<FileDevice> {
        let open = |flags: OFlags| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(len > 0)
                .truncate(false)
                .custom_flags(flags.bits() as i32)
                .mode(0o600)
                .open(path)
        };
        // A file system without direct I/O says so when the file is opened.
        let (file, direct) = match open(OFlags::DIRECT) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                (open(OFlags::empty())?, false)
            }
            opened => (opened?, true),
        };
        lock(&file)?;
        let rings = RingPool::new(depth).ok();
        let mut device =
            FileDevice { file, len: 0, new: false, direct, depth: depth.max(1), rings };
        device.set_len(len)?;
        Ok(device)
    }

    /// Makes a shorter file `len` bytes long, with its space allocated.
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let metadata = self.file.metadata()?;
        if metadata.file_type().is_block_device() {
            self.len = rustix::fs::seek(&self.file, SeekFrom::End(0))?;
            return Ok(());
        }
        self.len = metadata.len();
        self.new = self.len == 0;
        if self.len < len {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
                // Without it a full file system is noticed when a value is written.
                Err(Errno::OPNOTSUPP) => self.file.set_len(len)?,
                allocated => allocated?,
            }
            self.len = len;
        }
        Ok(())
    }

    /// Returns whether transfers bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Returns how batches are transferred.
    #[must_use]
    pub fn engine(&self) -> Engine {
        if self.rings.is_some() { Engine::IoUring } else { Engine::Threads }
    }

    /// Makes threads transfer the batches, as in a process that may have no ring.
    #[must_use]
    pub fn without_rings(mut self) -> Self {
        self.rings = None;
        self
    }

    fn transfer(&self, mut transfers: Vec<Transfer>) -> Vec<io::Result<()>> {
        let ring = self.rings.as_ref();
        // SAFETY: `write` and `read` borrow the memory of the transfers until this returns.
        let done = ring.and_then(|rings| unsafe { rings.run(self.file.as_fd(), &mut transfers) });
        done.unwrap_or_else(|| {
            let threads = self.depth.min(MAX_THREADS) as usize;
            threads::each(&mut transfers, threads, |transfer| self.transfer_one(transfer))
        })
    }

    /// Makes one transfer by system calls.
    fn transfer_one(&self, transfer: &mut Transfer) -> io::Result<()> {
        while transfer.len() > 0 {
            let (file, at) = (self.file.as_raw_fd(), transfer.at as libc::off_t);
            let parts = transfer.parts();
            let (vectors, count) = (parts.as_ptr(), parts.len() as libc::c_int);
            // SAFETY: the parts are memory that `write` or `read` borrows until this returns.
            let done = unsafe {
                if transfer.write {
                    libc::pwritev(file, vectors, count, at)
                } else {
                    libc::preadv(file, vectors, count, at)
                }
            };
            match usize::try_from(done) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(done) => transfer.advance(done),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Locks the file against other tiers.
///
/// The kernel completes what a killed process had in flight, and closes the file only then: until
/// that is done, the lock keeps the next process from what the last one still writes.
fn lock(file: &File) -> io::Result<()> {
    const WAIT: Duration = Duration::from_millis(10);
    let end = Instant::now() + Duration::from_secs(3);
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < end => thread::sleep(WAIT),
            locked => return Ok(locked?),
        }
    }
}

impl Device for FileDevice {
    fn len(&self) -> u64 {
        self.len
    }

    fn is_new(&self) -> bool {
        self.new
    }

    fn memory_align(&self) -> usize {
        if self.direct { BLOCK } else { 1 }
    }

    fn write(&self, batch: &[Write<'_>]) -> Vec<io::Result<()>> {
        self.transfer(batch.iter().map(Transfer::write).collect())
    }

    fn read(&self, batch: &mut [Read<'_>]) -> Vec<io::Result<()>> {
        self.transfer(batch.iter_mut().map(Transfer::read).collect())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.file)?)
    }
}

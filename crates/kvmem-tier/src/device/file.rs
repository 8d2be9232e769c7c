//! *File device*: a regular file or a block device, with direct I/O where the file system has it.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use super::{Device, Read, Write};
use crate::format::BLOCK;

/// A file or block device. Transfers of a batch are divided among [`threads`](Self::threads).
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    len: u64,
    new: bool,
    direct: bool,
    threads: usize,
}

impl FileDevice {
    /// Opens a file or block device of which nobody else makes a tier, and makes a new or shorter
    /// file `len` bytes long, with its space allocated. A length of 0 keeps that of the file.
    ///
    /// # Errors
    /// The system's error: `EWOULDBLOCK` if another process has it open as a tier.
    pub fn open(path: &Path, len: u64, threads: usize) -> io::Result<FileDevice> {
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
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let mut device = FileDevice { file, len: 0, new: false, direct, threads: threads.max(1) };
        device.set_len(len)?;
        Ok(device)
    }

    /// Makes a shorter file `len` bytes long, with its space allocated.
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let metadata = self.file.metadata()?;
        if metadata.file_type().is_block_device() {
            self.len = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?;
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

    /// Returns the number of threads that a batch is divided among.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `transfer` for each of `batch`, on several threads.
    fn each<T: Send>(
        &self,
        batch: &mut [T],
        transfer: impl Fn(&mut T) -> io::Result<()> + Sync,
    ) -> Vec<io::Result<()>> {
        let threads = self.threads.min(batch.len());
        if threads <= 1 {
            return batch.iter_mut().map(transfer).collect();
        }
        let work: Vec<_> = batch.iter_mut().map(|one| std::sync::Mutex::new(Some(one))).collect();
        let results: Vec<_> = work.iter().map(|_| std::sync::Mutex::new(Ok(()))).collect();
        let next = AtomicUsize::new(0);
        let run = || {
            // Relaxed: only the number itself is passed on; the scope's end orders the results.
            while let Some(mine) =
                Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&index| index < work.len())
            {
                let one = work[mine].lock().unwrap_or_else(|e| e.into_inner()).take();
                if let Some(one) = one {
                    *results[mine].lock().unwrap_or_else(|e| e.into_inner()) = transfer(one);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads {
                // Without another thread this one does the work.
                let _ = thread::Builder::new().spawn_scoped(scope, run);
            }
            run();
        });
        results.into_iter().map(|one| one.into_inner().unwrap_or_else(|e| e.into_inner())).collect()
    }
}

/// Repeats a call until all bytes are transferred. `call` gets the number of those that are, and
/// returns how many more it transferred.
fn whole(len: usize, mut call: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match call(done) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
        let mut batch = batch.to_vec();
        self.each(&mut batch, |Write { at, parts }| {
            whole(parts.iter().map(|part| part.len()).sum(), |done| {
                let skip = done.min(parts[0].len());
                let rest =
                    [IoSlice::new(&parts[0][skip..]), IoSlice::new(&parts[1][done - skip..])];
                Ok(rustix::io::pwritev(&self.file, &rest, *at + done as u64)?)
            })
        })
    }

    fn read(&self, batch: &mut [Read<'_>]) -> Vec<io::Result<()>> {
        self.each(batch, |Read { at, parts: [first, second] }| {
            whole(first.len() + second.len(), |done| {
                let skip = done.min(first.len());
                let mut rest = [
                    IoSliceMut::new(&mut first[skip..]),
                    IoSliceMut::new(&mut second[done - skip..]),
                ];
                Ok(rustix::io::preadv(&self.file, &mut rest, *at + done as u64)?)
            })
        })
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.file)?)
    }
}

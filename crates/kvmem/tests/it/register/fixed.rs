//! Work on fixed buffers: bytes go to a file and come back, by the key alone.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use ::io_uring::{opcode, squeue, types};
use kvmem::register::{IoUring, Key, Registrar, RegistrarError, RingTable};

/// Whether rings can be made here and may pin as much as these tests need; prints why not.
pub(crate) fn rings() -> bool {
    match IoUring::new(0).map(|ring| ring.limits().memlock) {
        Err(why) => println!("skipped: {why}"),
        Ok(Some(limit)) if limit.limit_bytes < 8 << 20 => {
            println!("skipped: RLIMIT_MEMLOCK is {} bytes", limit.limit_bytes);
        }
        Ok(_) => return true,
    }
    false
}

/// A ring that is worked with, and a file.
pub(crate) struct Worker {
    pub(crate) ring: ::io_uring::IoUring,
    file: File,
}

impl Worker {
    /// `None`, with the reason printed, where that cannot be.
    pub(crate) fn new() -> Option<Worker> {
        let ring = rings().then(|| ::io_uring::IoUring::new(8).expect("rings can be made here"))?;
        Some(Worker { ring, file: file() })
    }

    /// A second descriptor of the ring.
    pub(crate) fn fd(&self) -> OwnedFd {
        self.ring.as_fd().try_clone_to_owned().expect("a descriptor")
    }

    pub(crate) fn adopt(&self, table: RingTable) -> Result<IoUring, RegistrarError> {
        IoUring::adopt("ring", self.fd(), table)
    }

    /// Does one piece of work; returns bytes, or a negative error number.
    pub(crate) fn work(&mut self, entry: &squeue::Entry) -> i32 {
        self.submit(entry);
        self.done()
    }

    pub(crate) fn submit(&mut self, entry: &squeue::Entry) {
        // SAFETY: the kernel checks the buffer against the table; the callers' regions outlive the
        // work.
        unsafe { self.ring.submission().push(entry) }.expect("the queue is empty");
        self.ring.submit().expect("it takes the work");
    }

    pub(crate) fn done(&mut self) -> i32 {
        self.ring.submit_and_wait(1).expect("it waits");
        self.ring.completion().next().expect("one was waited for").result()
    }

    pub(crate) fn write(&mut self, key: Key, at: NonNull<u8>, len: usize) -> i32 {
        let file = types::Fd(self.file.as_raw_fd());
        self.work(&opcode::WriteFixed::new(file, at.as_ptr(), len as u32, key.lkey as u16).build())
    }

    pub(crate) fn read(&mut self, key: Key, at: NonNull<u8>, len: usize) -> i32 {
        let file = types::Fd(self.file.as_raw_fd());
        self.work(&opcode::ReadFixed::new(file, at.as_ptr(), len as u32, key.lkey as u16).build())
    }

    /// Bytes that nobody else has go out by the key and come in by it, and are right.
    pub(crate) fn prove(&mut self, key: Key, at: NonNull<u8>, len: usize) {
        // SAFETY: the callers' memory, mapped and nobody else's while this runs.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) };
        let seed = at.as_ptr() as usize / 64 + len;
        let pattern: Vec<u8> = (0..len).map(|at| (seed + at + at / 251) as u8).collect();
        bytes.copy_from_slice(&pattern);
        assert_eq!(self.write(key, at, len), len as i32);
        let mut found = vec![0; len];
        self.file.read_exact_at(&mut found, 0).expect("it was written");
        assert!(found == pattern, "other bytes went out than there are");
        let turned: Vec<u8> = pattern.iter().map(|byte| !byte).collect();
        self.file.write_all_at(&turned, 0).expect("a little room");
        assert_eq!(self.read(key, at, len), len as i32);
        // SAFETY: as above. The kernel has written to them since, so they are looked at anew.
        let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), len) };
        assert!(bytes == turned, "other bytes came in than there are");
    }

    /// Nothing goes out or comes in by this key.
    pub(crate) fn refuses(&mut self, key: Key, at: NonNull<u8>, len: usize) {
        self.file.write_all_at(&vec![7; len], 0).expect("a little room");
        assert_eq!(self.read(key, at, len), -libc::EFAULT);
        assert_eq!(self.write(key, at, len), -libc::EFAULT);
    }
}

/// A file without a name.
pub(crate) fn file() -> File {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only that no two are the same matters.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("kvmem-test-{}-{number}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let file = file.expect("a folder for such files");
    std::fs::remove_file(&path).expect("it was made just now");
    file
}

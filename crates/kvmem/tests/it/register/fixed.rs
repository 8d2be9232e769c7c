//! Work on fixed buffers: bytes are written to a file and read back by the key alone.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use ::io_uring::{opcode, squeue, types};
use kvmem::register::{IoUring, Key, Registrar, RegistrarError, RingTable};

/// Returns whether rings can be created and may pin as much as these tests need; prints why not.
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

/// A ring for work, and a file.
pub(crate) struct Worker {
    pub(crate) ring: ::io_uring::IoUring,
    file: File,
}

impl Worker {
    /// Returns `None`, and prints the reason, if rings cannot be created.
    pub(crate) fn new() -> Option<Worker> {
        let ring = rings().then(|| ::io_uring::IoUring::new(8).expect("rings can be created"))?;
        Some(Worker { ring, file: file() })
    }

    /// Returns a duplicate descriptor of the ring.
    pub(crate) fn fd(&self) -> OwnedFd {
        self.ring.as_fd().try_clone_to_owned().expect("a descriptor")
    }

    pub(crate) fn adopt(&self, table: RingTable) -> Result<IoUring, RegistrarError> {
        IoUring::adopt("ring", self.fd(), table)
    }

    /// Does one request; returns bytes, or a negated error number.
    pub(crate) fn work(&mut self, entry: &squeue::Entry) -> i32 {
        self.submit(entry);
        self.done()
    }

    pub(crate) fn submit(&mut self, entry: &squeue::Entry) {
        // SAFETY: the kernel checks the buffer against the table; the callers' regions outlive the
        // work.
        unsafe { self.ring.submission().push(entry) }.expect("the queue is empty");
        self.ring.submit().expect("the ring accepts the request");
    }

    pub(crate) fn done(&mut self) -> i32 {
        self.ring.submit_and_wait(1).expect("it waits");
        self.ring.completion().next().expect("a completion").result()
    }

    pub(crate) fn write(&mut self, key: Key, at: NonNull<u8>, len: usize) -> i32 {
        let file = types::Fd(self.file.as_raw_fd());
        self.work(&opcode::WriteFixed::new(file, at.as_ptr(), len as u32, key.lkey as u16).build())
    }

    pub(crate) fn read(&mut self, key: Key, at: NonNull<u8>, len: usize) -> i32 {
        let file = types::Fd(self.file.as_raw_fd());
        self.work(&opcode::ReadFixed::new(file, at.as_ptr(), len as u32, key.lkey as u16).build())
    }

    /// Writes unique bytes through the key, reads others back through it, and checks both.
    pub(crate) fn prove(&mut self, key: Key, at: NonNull<u8>, len: usize) {
        // SAFETY: the callers' memory is mapped, and nothing else uses it while this runs.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) };
        let seed = at.as_ptr() as usize / 64 + len;
        let pattern: Vec<u8> = (0..len).map(|at| (seed + at + at / 251) as u8).collect();
        bytes.copy_from_slice(&pattern);
        assert_eq!(self.write(key, at, len), len as i32);
        let mut found = vec![0; len];
        self.file.read_exact_at(&mut found, 0).expect("it was written");
        assert!(found == pattern, "the key wrote other bytes");
        let turned: Vec<u8> = pattern.iter().map(|byte| !byte).collect();
        self.file.write_all_at(&turned, 0).expect("space for a file");
        assert_eq!(self.read(key, at, len), len as i32);
        // SAFETY: the callers' memory is mapped, and nothing else uses it while this runs. The
        // kernel has written to it, so the slice is created anew.
        let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), len) };
        assert!(bytes == turned, "the key read other bytes");
    }

    /// Checks that this key can neither write nor read.
    pub(crate) fn assert_unusable(&mut self, key: Key, at: NonNull<u8>, len: usize) {
        self.file.write_all_at(&vec![7; len], 0).expect("space for a file");
        assert_eq!(self.read(key, at, len), -libc::EFAULT);
        assert_eq!(self.write(key, at, len), -libc::EFAULT);
    }
}

/// Creates a file without a name.
pub(crate) fn file() -> File {
    tempfile::tempfile().expect("a folder for such files")
}

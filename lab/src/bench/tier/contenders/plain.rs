//! Reads and writes alone: what the device gives to a loop that does nothing else.
//!
//! The loop is that of a generator of I/O: as many transfers in flight as allowed, each from or to
//! registered memory (*fixed buffers*) by direct I/O, a new one for each that is done.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result};
use io_uring::{IoUring, opcode, squeue, types};
use kvmem::pool::Pool;
use rustix::fs::{FallocateFlags, OFlags};

use super::Room;
use crate::bench::values::{Memory, ValueContender};

/// Bytes of a fixed buffer: the kernel allows no more.
const BUFFER: usize = 1 << 30;

/// A file with room for values, one behind the other.
pub(super) struct Plain {
    file: File,
    ring: IoUring,
    /// Whether the pool's memory is registered.
    fixed: bool,
    depth: usize,
    /// Values that have room.
    slots: u64,
}

/// A transfer: where in the file, and from or to which bytes.
struct Transfer {
    at: u64,
    memory: *mut u8,
    len: u32,
    /// The buffer that has the bytes.
    buffer: u16,
}

impl Plain {
    pub(super) fn new(room: Room<'_>, stride: usize, pool: &Pool) -> Result<Plain> {
        let path = room.dir.join("plain");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let direct = options.custom_flags(OFlags::DIRECT.bits() as i32).open(&path);
        let file = match direct {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                options.custom_flags(0).open(&path)
            }
            opened => opened,
        };
        let file = file.context("open")?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, room.bytes)
            .context("fallocate")?;
        let ring = IoUring::builder().setup_clamp().build(room.depth).context("io_uring_setup")?;
        let (base, len) = (pool.base().as_ptr(), pool.capacity() as usize);
        let buffers: Vec<libc::iovec> = (0..len)
            .step_by(BUFFER)
            .map(|at| libc::iovec {
                iov_base: base.wrapping_add(at).cast(),
                iov_len: BUFFER.min(len - at),
            })
            .collect();
        // SAFETY: the memory of the pool stays mapped while the contender lives, which is dropped
        // before the memory; the ring transfers only what `run` is lent.
        let fixed = unsafe { ring.submitter().register_buffers(&buffers) }.is_ok();
        let slots = room.bytes / stride as u64;
        Ok(Plain { file, ring, fixed, depth: room.depth as usize, slots })
    }

    fn transfer(&self, memory: &Memory, number: u64, value: *mut u8) -> Transfer {
        let offset = value as usize - memory.pool.base().as_ptr() as usize;
        Transfer {
            at: number % self.slots * memory.stride as u64,
            memory: value,
            len: memory.stride as u32,
            buffer: (offset / BUFFER) as u16,
        }
    }

    /// Makes the transfers. Short ones are errors: there is nothing behind which they could stop.
    ///
    /// # Safety
    /// The bytes of the transfers are valid until this returns, and lie in the pool.
    unsafe fn run(&mut self, transfers: &[Transfer], write: bool) -> Result<()> {
        let file = types::Fd(self.file.as_raw_fd());
        let mut failed = None;
        let (mut next, mut in_flight) = (0, 0);
        while next < transfers.len() || in_flight > 0 {
            while in_flight < self.depth && next < transfers.len() {
                let entry = entry(&transfers[next], file, self.fixed, write).user_data(next as u64);
                // SAFETY: the caller lends the bytes until all transfers are done.
                if unsafe { self.ring.submission().push(&entry) }.is_err() {
                    break;
                }
                (next, in_flight) = (next + 1, in_flight + 1);
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    assert!(in_flight == 0, "transfers cannot be waited for: {error}");
                    return Err(error).context("io_uring_enter");
                }
            }
            for done in self.ring.completion() {
                in_flight -= 1;
                let transfer = &transfers[done.user_data() as usize];
                let error = match done.result() {
                    bytes if bytes == transfer.len as i32 => continue,
                    bytes if bytes >= 0 => io::ErrorKind::UnexpectedEof.into(),
                    error => io::Error::from_raw_os_error(-error),
                };
                (failed, next) = (Some(error), transfers.len());
            }
        }
        let call = if write { "write" } else { "read" };
        failed.map_or(Ok(()), Err).context(call)
    }
}

fn entry(transfer: &Transfer, file: types::Fd, fixed: bool, write: bool) -> squeue::Entry {
    let Transfer { at, memory, len, buffer } = *transfer;
    match (fixed, write) {
        (true, true) => opcode::WriteFixed::new(file, memory, len, buffer).offset(at).build(),
        (true, false) => opcode::ReadFixed::new(file, memory, len, buffer).offset(at).build(),
        (false, true) => opcode::Write::new(file, memory, len).offset(at).build(),
        (false, false) => opcode::Read::new(file, memory, len).offset(at).build(),
    }
}

impl ValueContender for Plain {
    fn store(&mut self, memory: &mut Memory, first: u64) -> Result<()> {
        let values: Vec<*mut u8> =
            memory.values(first).map(|value| value.as_ptr().cast_mut()).collect();
        let numbers = (first..).zip(values);
        let transfers: Vec<Transfer> =
            numbers.map(|(number, value)| self.transfer(memory, number, value)).collect();
        // SAFETY: the kernel only reads the values, which `memory` keeps.
        unsafe { self.run(&transfers, true) }
    }

    fn fetch(&mut self, memory: &mut Memory, numbers: &[u64]) -> Result<()> {
        let rooms: Vec<*mut u8> = memory.rooms().map(<[u8]>::as_mut_ptr).collect();
        let numbers = numbers.iter().zip(rooms);
        let transfers: Vec<Transfer> =
            numbers.map(|(&number, room)| self.transfer(memory, number, room)).collect();
        // SAFETY: the rooms are exclusively borrowed, and lie apart.
        unsafe { self.run(&transfers, false) }
    }
}

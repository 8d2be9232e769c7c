//! *Rings*: transfers by io_uring, many at once for one thread.
//!
//! A thread that has a batch takes a ring of its own from the pool, keeps it filled until the batch
//! is done, and puts it back. Threads therefore share nothing while they wait, and a batch is done
//! when its call returns.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use io_uring::{IoUring, opcode, squeue, types};

use super::transfer::Transfer;

/// Rings that no thread uses now.
pub(super) struct RingPool {
    idle: Mutex<Vec<IoUring>>,
    /// Transfers that one thread has in flight at most.
    depth: u32,
}

impl RingPool {
    /// Creates a pool with one ring, which shows that this process may have rings.
    pub(super) fn new(depth: u32) -> io::Result<RingPool> {
        let depth = depth.clamp(1, 4096);
        Ok(RingPool { idle: Mutex::new(vec![new_ring(depth)?]), depth })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<IoUring>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the transfers, at most `depth` of them at a time; returns the result of each in the
    /// same order. `None` if no ring can be had: nothing has happened then.
    ///
    /// # Safety
    /// The memory of the transfers is valid for their direction until the call returns, and nothing
    /// else uses it meanwhile, except that several writes may read the same bytes.
    pub(super) unsafe fn run(
        &self,
        file: BorrowedFd<'_>,
        transfers: &mut [Transfer],
    ) -> Option<Vec<io::Result<()>>> {
        let taken = self.idle().pop();
        let mut ring = match taken {
            Some(ring) => ring,
            None => new_ring(self.depth).ok()?,
        };
        let results = drive(&mut ring, file, transfers, self.depth as usize);
        self.idle().push(ring);
        Some(results)
    }
}

fn entry(transfer: &Transfer, file: types::Fd, index: usize) -> squeue::Entry {
    let parts = transfer.parts();
    let (vector, count) = (parts.as_ptr(), parts.len() as u32);
    let entry = if transfer.write {
        opcode::Writev::new(file, vector, count).offset(transfer.at).build()
    } else {
        opcode::Readv::new(file, vector, count).offset(transfer.at).build()
    };
    entry.user_data(index as u64)
}

fn new_ring(depth: u32) -> io::Result<IoUring> {
    IoUring::builder().setup_clamp().build(depth)
}

/// Submits and completes the transfers. Returns when none is in flight.
fn drive(
    ring: &mut IoUring,
    file: BorrowedFd<'_>,
    transfers: &mut [Transfer],
    depth: usize,
) -> Vec<io::Result<()>> {
    let file = types::Fd(file.as_raw_fd());
    let mut results: Vec<io::Result<()>> = transfers.iter().map(|_| Ok(())).collect();
    // Transfers to submit again, after a short or interrupted one.
    let mut again: Vec<usize> = Vec::new();
    let (mut next, mut in_flight) = (0, 0);
    loop {
        while in_flight < depth
            && let Some(index) = again.pop().or_else(|| {
                (next < transfers.len()).then(|| {
                    next += 1;
                    next - 1
                })
            })
        {
            if transfers[index].len() == 0 {
                continue;
            }
            let entry = entry(&transfers[index], file, index);
            // SAFETY: the caller of `run` lends the memory until that returns, which is after every
            // completion. The vectors are in `transfers`, which is borrowed as long.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                again.push(index);
                break;
            }
            in_flight += 1;
        }
        if in_flight == 0 {
            return results;
        }
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            // The entries stay in the queue. Returning while a transfer is in flight would end the
            // loan of its memory too early.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
                ) => {}
            Err(_) => std::thread::yield_now(),
        }
        for completed in ring.completion() {
            in_flight -= 1;
            let index = completed.user_data() as usize;
            match completed.result() {
                0 => results[index] = Err(io::ErrorKind::UnexpectedEof.into()),
                done if done > 0 => {
                    transfers[index].advance(done as usize);
                    if transfers[index].len() > 0 {
                        again.push(index);
                    }
                }
                error if matches!(-error, libc::EINTR | libc::EAGAIN) => again.push(index),
                error => results[index] = Err(io::Error::from_raw_os_error(-error)),
            }
        }
    }
}

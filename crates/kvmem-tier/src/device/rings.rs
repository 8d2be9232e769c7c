//! *Rings*: transfers by io_uring, many at once for one thread.
//!
//! A thread that has a batch takes a ring of its own from the pool, keeps it filled until the batch
//! is done, and puts it back. Threads therefore share nothing while they wait, and a batch is done
//! when its call returns.
//!
//! Between two system calls the thread works: on writes that it has just submitted, and on reads
//! that are complete. It waits only when nothing is left to do. A wait for several completions
//! takes one system call and one change of threads; for reads it must end while enough of them are
//! in flight that the device is busy during the work on the completed ones.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use io_uring::{IoUring, opcode, squeue, types};

use super::batch::BatchEvents;
use super::transfer::Transfer;

/// A thread that waits lets this part of its transfers complete, and works on them while the rest
/// is in flight.
const PART_OF_WAIT: usize = 4;

/// Rings that no thread uses now.
pub(super) struct RingPool {
    idle: Mutex<Vec<Ring>>,
    /// Transfers that one thread has in flight at most.
    depth: u32,
}

/// A ring, with memory for the batches on it.
pub(super) struct Ring {
    ring: IoUring,
    transfers: Vec<Transfer>,
    /// Transfers to submit again, after a short or interrupted one.
    again: Vec<usize>,
}

impl RingPool {
    /// Creates a pool with one ring, which shows that this process may have rings.
    pub(super) fn new(depth: u32) -> io::Result<RingPool> {
        let depth = depth.clamp(1, 4096);
        Ok(RingPool { idle: Mutex::new(vec![Ring::new(depth)?]), depth })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Ring>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the transfers that one thread has in flight at most.
    pub(super) fn depth(&self) -> usize {
        self.depth as usize
    }

    /// Takes a ring; `None` if none can be had.
    pub(super) fn take(&self) -> Option<Ring> {
        let taken = self.idle().pop();
        taken.or_else(|| Ring::new(self.depth).ok())
    }

    /// Puts a ring back.
    pub(super) fn put(&self, ring: Ring) {
        self.idle().push(ring);
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

/// The transfers that the kernel has. Waits for them when it is dropped, by a panic too: their
/// memory is lent no longer then.
struct InFlight<'a> {
    ring: &'a mut IoUring,
    count: usize,
}

impl InFlight<'_> {
    /// Submits what is queued, and waits until `count` transfers are complete.
    fn wait(&mut self, count: usize) {
        match self.ring.submit_and_wait(count) {
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
    }

    /// Takes a completion: the index of the transfer and the kernel's result.
    fn next_completed(&mut self) -> Option<(usize, i32)> {
        let completed = self.ring.completion().next()?;
        self.count -= 1;
        Some((completed.user_data() as usize, completed.result()))
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        while self.count > 0 {
            self.wait(self.count);
            while self.next_completed().is_some() {}
        }
    }
}

impl Ring {
    fn new(depth: u32) -> io::Result<Ring> {
        let ring = IoUring::builder().setup_clamp().build(depth)?;
        Ok(Ring { ring, transfers: Vec::new(), again: Vec::new() })
    }

    /// Takes the memory of an earlier batch, which is empty.
    pub(super) fn take_memory(&mut self) -> Vec<Transfer> {
        std::mem::take(&mut self.transfers)
    }

    /// Submits and completes the transfers, `depth` at a time. Returns, or unwinds, when none is in
    /// flight.
    ///
    /// # Safety
    /// The memory of the transfers is valid for their direction until this returns or unwinds, and
    /// nothing else uses it meanwhile, except that several writes may read the same bytes, and that
    /// `events` uses the bytes of transfers that are complete.
    pub(super) unsafe fn drive<E: BatchEvents>(
        &mut self,
        file: BorrowedFd<'_>,
        mut transfers: Vec<Transfer>,
        depth: usize,
        events: &mut E,
    ) {
        let file = types::Fd(file.as_raw_fd());
        let Ring { ring, again, .. } = self;
        again.clear();
        let mut in_flight = InFlight { ring, count: 0 };
        // The next transfer to submit, and the next one to work on.
        let (mut next, mut work) = (0, 0);
        loop {
            let mut queued = false;
            while in_flight.count < depth
                && let Some(index) = again.pop().or_else(|| {
                    (next < transfers.len()).then(|| {
                        next += 1;
                        next - 1
                    })
                })
            {
                if transfers[index].len() == 0 {
                    events.done(index, Ok(()));
                    continue;
                }
                let entry = entry(&transfers[index], file, index);
                // SAFETY: the caller lends the memory until this function returns or unwinds, which
                // is after every completion: `in_flight` waits for them. The vectors are in
                // `transfers`, whose elements stay where they are.
                if unsafe { in_flight.ring.submission().push(&entry) }.is_err() {
                    again.push(index);
                    break;
                }
                in_flight.count += 1;
                queued = true;
            }
            let completed = in_flight.next_completed();
            let has_work = E::HAS_WORK && work < next;
            if queued && (completed.is_some() || has_work) {
                // What the kernel does not take now is submitted by the next wait.
                let _ = in_flight.ring.submit();
            }
            match completed {
                Some((index, 0)) => events.done(index, Err(io::ErrorKind::UnexpectedEof.into())),
                Some((index, done)) if done > 0 => {
                    transfers[index].advance(done as usize);
                    if transfers[index].len() > 0 {
                        again.push(index);
                    } else {
                        events.done(index, Ok(()));
                    }
                }
                Some((index, error)) if matches!(-error, libc::EINTR | libc::EAGAIN) => {
                    again.push(index);
                }
                Some((index, error)) => {
                    events.done(index, Err(io::Error::from_raw_os_error(-error)));
                }
                None if has_work => {
                    events.in_flight(work);
                    work += 1;
                }
                None if in_flight.count == 0 => break,
                None => {
                    let all_submitted = next == transfers.len() && again.is_empty();
                    let count = if E::HAS_WORK && all_submitted {
                        in_flight.count
                    } else {
                        in_flight.count.div_ceil(PART_OF_WAIT)
                    };
                    in_flight.wait(count);
                }
            }
        }
        drop(in_flight);
        transfers.clear();
        self.transfers = transfers;
    }
}

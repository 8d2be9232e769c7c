//! *Rings*: transfers by io_uring, many at once for one thread.
//!
//! A thread that has a batch takes a ring of its own from the pool, refills it until the batch
//! is done, and puts it back. Threads therefore share nothing while they wait, and a batch is done
//! when its call returns.
//!
//! Between two system calls the thread works: on writes that it has just submitted, on reads that
//! are complete, and on what its caller has to do anyway. It waits only when nothing is left to do.
//! A wait for several completions takes one system call and one change of threads; for reads it
//! must end while enough of them are in flight that the device is busy during the work on the
//! completed ones. A system call, too, submits several transfers: each is an exit of a virtual
//! machine, which takes as long as a transfer of 64 KiB.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io_uring::{IoUring, opcode, squeue, types};

use super::batch::BatchEvents;
use super::buffer_table::{BufferTable, FixedBufferStats};
use super::counts::{Counts, Next};
use super::priority::Share;
use super::transfer::{Transfer, TransferPiece};

/// A thread that waits lets this part of its transfers complete, and works on them while the rest
/// is in flight.
const PART_OF_WAIT: usize = 4;

/// A thread that has other work submits further transfers when this part of all that may be in
/// flight is complete.
const PART_OF_REFILL: usize = 4;

/// Rings that no thread uses now.
pub(super) struct RingPool {
    idle: Mutex<Idle>,
    /// Transfers that one thread has in flight at most.
    depth: u32,
    /// Transfers that used a fixed buffer.
    fixed_transfers: AtomicU64,
}

struct Idle {
    rings: Vec<Ring>,
    /// The fixed buffers that a ring has from the next batch on.
    table: Arc<BufferTable>,
    /// A file that each ring has open while it has transfers in flight.
    held_open: Option<Arc<OwnedFd>>,
}

/// A ring, with memory for the batches on it.
pub(super) struct Ring {
    ring: IoUring,
    /// The table that it was to have last, and whether it has it.
    table: Arc<BufferTable>,
    has_table: bool,
    /// Whether the ring has such a file open.
    keeps_open: bool,
    transfers: Vec<Transfer>,
    /// Transfers to submit again, after a short or interrupted one.
    again: Vec<usize>,
}

impl RingPool {
    /// Creates a pool with one ring, which shows that this process may have rings.
    pub(super) fn new(depth: u32) -> io::Result<RingPool> {
        let depth = depth.clamp(1, 4096);
        let table = Arc::default();
        let rings = vec![Ring::new(depth, &table)?];
        let idle = Mutex::new(Idle { rings, table, held_open: None });
        Ok(RingPool { idle, depth, fixed_transfers: AtomicU64::new(0) })
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the transfers that one thread has in flight at most.
    pub(super) fn depth(&self) -> usize {
        self.depth as usize
    }

    /// Takes a ring; `None` if none is idle and the kernel creates none.
    pub(super) fn take(&self) -> Option<Ring> {
        let (taken, table, held_open) = {
            let mut idle = self.idle();
            (idle.rings.pop(), Arc::clone(&idle.table), idle.held_open.clone())
        };
        let mut ring = taken.or_else(|| Ring::new(self.depth, &Arc::default()).ok())?;
        ring.keep_open(held_open.as_deref()).ok()?;
        ring.set_table(&table);
        Some(ring)
    }

    /// Puts a ring back, which has made `fixed` transfers with fixed buffers.
    pub(super) fn put(&self, mut ring: Ring, fixed: u64) {
        // Relaxed: only a statistic.
        self.fixed_transfers.fetch_add(fixed, Ordering::Relaxed);
        let mut idle = self.idle();
        // Memory that was deregistered meanwhile is not pinned any longer than that.
        ring.set_table(&idle.table);
        idle.rings.push(ring);
    }

    /// Makes each ring hold a file open until none of its transfers is in flight. The kernel
    /// completes the transfers of a killed process after the end of the process, and closes the
    /// file only then.
    pub(super) fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
        let mut idle = self.idle();
        idle.rings.iter_mut().try_for_each(|ring| ring.keep_open(Some(&file)))?;
        idle.held_open = Some(Arc::new(file));
        Ok(())
    }

    /// Changes the table of all rings; those in use get it when they are put back.
    pub(super) fn set_table(&self, change: impl FnOnce(&BufferTable) -> BufferTable) {
        let mut idle = self.idle();
        let Idle { rings, table, .. } = &mut *idle;
        *table = Arc::new(change(table));
        rings.iter_mut().for_each(|ring| ring.set_table(table));
    }

    /// Returns what was done with fixed buffers.
    pub(super) fn fixed(&self) -> FixedBufferStats {
        FixedBufferStats {
            bytes: self.idle().table.bytes(),
            // Relaxed: only a statistic.
            transfers: self.fixed_transfers.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for RingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingPool").field("depth", &self.depth).finish_non_exhaustive()
    }
}

/// Returns the entry of a piece of a transfer, and whether it uses a fixed buffer.
fn entry(
    transfer: &Transfer,
    piece: &TransferPiece<'_>,
    file: types::Fd,
    index: usize,
    table: Option<&BufferTable>,
) -> (squeue::Entry, bool) {
    let (write, at) = (transfer.write, transfer.at);
    let (entry, is_fixed) = match *piece {
        // A buffer is at most 1 GiB long.
        TransferPiece::Bytes(memory, len) => {
            let (slot, len) = (table.and_then(|table| table.slot_of(memory, len)), len as u32);
            let entry = match (slot, write) {
                (Some(slot), true) => {
                    opcode::WriteFixed::new(file, memory, len, slot).offset(at).build()
                }
                (Some(slot), false) => {
                    opcode::ReadFixed::new(file, memory, len, slot).offset(at).build()
                }
                (None, true) => opcode::Write::new(file, memory, len).offset(at).build(),
                (None, false) => opcode::Read::new(file, memory, len).offset(at).build(),
            };
            (entry, slot.is_some())
        }
        TransferPiece::Parts(parts) => {
            let (vector, count) = (parts.as_ptr(), parts.len() as u32);
            let entry = match write {
                true => opcode::Writev::new(file, vector, count).offset(at).build(),
                false => opcode::Readv::new(file, vector, count).offset(at).build(),
            };
            (entry, false)
        }
    };
    (entry.user_data(index as u64), is_fixed)
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
    /// Creates a ring without fixed buffers, although it is to have those of `table`.
    fn new(depth: u32, table: &Arc<BufferTable>) -> io::Result<Ring> {
        let ring = IoUring::builder().setup_clamp().build(depth)?;
        let table = Arc::clone(table);
        let (transfers, again) = (Vec::new(), Vec::new());
        Ok(Ring { ring, table, has_table: false, keeps_open: false, transfers, again })
    }

    /// Keeps a file open, as the only registered file of the ring, if it does not yet.
    fn keep_open(&mut self, file: Option<&OwnedFd>) -> io::Result<()> {
        if let Some(file) = file.filter(|_| !self.keeps_open) {
            self.ring.submitter().register_files(&[file.as_raw_fd()])?;
            self.keeps_open = true;
        }
        Ok(())
    }

    /// Gives the ring this table, unless it was tried before.
    fn set_table(&mut self, table: &Arc<BufferTable>) {
        if !Arc::ptr_eq(&self.table, table) {
            self.table = Arc::clone(table);
            self.has_table = table.clone_to(&self.ring).is_ok();
        }
    }

    /// Takes the memory of an earlier batch, which is empty.
    pub(super) fn take_memory(&mut self) -> Vec<Transfer> {
        std::mem::take(&mut self.transfers)
    }

    /// Submits and completes the transfers, `depth` at a time, and no more bytes than their `share`
    /// at the time; short ones go on at multiples of the alignment, counted in `counts`. Returns,
    /// or unwinds, when none is in flight. Returns how many used a fixed buffer.
    ///
    /// # Safety
    /// The memory of the transfers is valid for their direction until this returns or unwinds, and
    /// nothing else uses it meanwhile, except that several writes may read the same bytes, and that
    /// `events` uses the bytes of transfers that are complete.
    pub(super) unsafe fn drive<E: BatchEvents>(
        &mut self,
        file: BorrowedFd<'_>,
        mut transfers: Vec<Transfer>,
        (depth, share): (usize, impl Fn() -> Share),
        (counts, align): (&Counts, usize),
        events: &mut E,
    ) -> u64 {
        let file = types::Fd(file.as_raw_fd());
        let Ring { ring, again, .. } = self;
        let table = Some(&*self.table).filter(|_| self.has_table);
        let mut fixed = 0;
        again.clear();
        let mut in_flight = InFlight { ring, count: 0 };
        // Of those, the bytes, and how many are not the end of their transfer.
        let (mut bytes, mut partial) = (0, 0);
        // The next transfer to submit.
        let mut next = 0;
        loop {
            let mut queued = false;
            let share = share();
            let is_idle = !events.has_work(next) && in_flight.ring.completion().is_empty();
            let may_refill = is_idle || in_flight.count <= depth - depth.div_ceil(PART_OF_REFILL);
            while may_refill
                && in_flight.count < depth
                && (bytes < share.bytes || in_flight.count == 0)
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
                // Some bytes are left of the share, or none are in flight.
                let piece = transfers[index].piece(share.piece.min(share.bytes - bytes));
                let len = piece.len();
                let (entry, is_fixed) = entry(&transfers[index], &piece, file, index, table);
                // SAFETY: the caller lends the memory until this function returns or unwinds, which
                // is after every completion: `in_flight` waits for them. The vectors are in
                // `transfers`, whose elements stay where they are. A fixed buffer has the pages of
                // the memory, which stay the same as long as it is registered.
                if unsafe { in_flight.ring.submission().push(&entry) }.is_err() {
                    again.push(index);
                    break;
                }
                in_flight.count += 1;
                bytes += len;
                partial += usize::from(len < transfers[index].len());
                transfers[index].in_flight = len;
                fixed += u64::from(is_fixed);
                queued = true;
            }
            let completed = in_flight.next_completed();
            let has_work = events.has_work(next);
            if queued && (completed.is_some() || has_work) {
                // What the kernel does not take now is submitted by the next wait.
                let _ = in_flight.ring.submit();
            }
            match completed {
                Some((index, answer)) => {
                    let transfer = &mut transfers[index];
                    bytes -= transfer.in_flight;
                    partial -= usize::from(transfer.in_flight < transfer.len());
                    match counts.note(transfer, answer.into(), align) {
                        Next::Done(result) => events.done(index, result),
                        Next::Again => again.push(index),
                    }
                }
                None if has_work => events.work(),
                None if in_flight.count == 0 => break,
                None => {
                    let all_submitted = next == transfers.len() && again.is_empty() && partial == 0;
                    let count = if !E::WORKS_WHEN_DONE && all_submitted {
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
        fixed
    }
}

//! *io_uring*: fixed buffers of a ring, pinned by the same kernel path that RDMA drivers use.
//!
//! A ring has a table of up to 16,384 slots, each for a buffer of up to 1 GiB. Filling a slot pins
//! the pages. Work on the ring then names the slot (`buf_index`), and the kernel need not look up
//! the pages again. [`IoUring::new`] creates a ring and uses only its table;
//! [`IoUring::adopt`] uses a ring that other code submits work to.
//!
//! ## Avoiding a quadratic search
//!
//! A hugepage counts once against the limit of pinned memory, even if several buffers of a ring lie
//! in it. To detect that, the kernel searches for each hugepage that it pins: it walks the
//! hugepages of all buffers in the table, and every slot of the table, used or not. The time to
//! register a region therefore grows with the square of its hugepages. Measured on Linux 6.18, THP
//! in chunks of 256 MiB, one ring:
//!
//! | region | table of 64 | of 1,024 | of 16,384 | through a side ring |
//! |---|---|---|---|---|
//! | 8 GiB | 50 ms | 52 ms | 82 ms | 7.5 ms |
//! | 16 GiB | 195 ms | 203 ms | 254 ms | 16 ms |
//!
//! The last column is what this module does. Each ring has a *side ring*, whose table has a single,
//! empty slot. Pages are pinned in the side ring, where there is nothing to search. Then the buffer
//! is cloned into the table of the main ring, which costs no more than copying the table, and the
//! side ring releases it. Base pages, which are not searched, take 72 ms for 4 GiB in both ways.
//! Cloning a single slot needs Linux 6.13; on older kernels buffers are registered in the table
//! itself.
//!
//! The purpose of the search is lost: a hugepage with several buffers counts once for each of them.
//! Newer kernels count like that in any case. If a limit applies, buffers that do not begin and end
//! on a hugepage boundary are registered in the table itself.
//!
//! In Linux 6.13 to 6.18, before the fix in their stable releases, such a clone drops every buffer
//! in the slots after its own. Buffers are therefore cloned only into the slot after all used ones.
//! Free slots between used ones are filled in place, when no others are left.
//!
//! ## The size of the table
//!
//! A table starts with 1,024 slots: 8 KiB of kernel memory and 14 µs. A table of 16,384 slots would
//! take 128 KiB and 170 µs, and, without the side ring, 8 µs more for each hugepage. Cloning into a
//! slot beyond the end extends the table, so with the side ring all 16,384 slots can be used.
//! Without it there are 1,024, which is 1 TiB in chunks of 1 GiB.
//!
//! ## The size of chunks
//!
//! Registering each chunk in all rings in turn is fastest with chunks of at most 256 MiB: the
//! kernel's metadata of the pages is then still in the cache when the next ring needs it. Eight
//! rings register 8 GiB of THP in 36 ms, compared with 57 ms with chunks of 1 GiB; base pages take
//! a tenth to a fifth less time.

mod failure;
mod slots;

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::slots::{BufferSlots, ReservedSlot};
use super::memlock;
use crate::register::{Account, Key, Limits, Memlock, NotAvailable, Registrar, RegistrarError};
use crate::sync::{AtomicU64, Ordering};
use crate::sys::{self, Call, Errno};

const BACKEND: &str = "io_uring";
/// The largest buffer in bytes: `SZ_1G` in the kernel's `io_uring/rsrc.c`.
const MAX_BYTES: u64 = 1 << 30;
/// The largest number of slots: `IORING_MAX_REG_BUFFERS` in the kernel's `io_uring/rsrc.c`.
const MAX_SLOTS: u32 = 1 << 14;
/// The number of slots of a new table.
const SLOTS: u32 = 1 << 10;
/// Bytes of a hugepage of the usual size.
const HUGEPAGE: usize = 2 << 20;
/// The chunk length in bytes at which several rings are fastest.
const PREFERRED_BYTES: u64 = 256 << 20;

/// Bytes pinned by those rings of this process to which the limit applies. The limit is for all
/// rings of the user; this is the known part of it.
static PINNED: AtomicU64 = AtomicU64::new(0);

/// The fixed buffers of a ring.
///
/// A key's `lkey` is the slot of its buffer, the `buf_index` of work on the ring. Its `handle` is
/// the slot too, with a number above bit 32 that distinguishes it from earlier keys to the same
/// slot. There is no `rkey`.
///
/// Several threads may register and deregister; each ring registers one buffer at a time. After
/// deregistering, new work cannot name the buffer. Its pages are unpinned when the last request
/// that uses the buffer completes, which is immediately if there is none.
///
/// If `RLIMIT_MEMLOCK` applies, hugepages count as a whole, and the limit is for all rings of the
/// user.
///
/// Dropping the registrar empties its slots and closes its ring.
///
/// ```
/// use kvmem::register::{IoUring, Registrar};
///
/// match IoUring::new(0) {
///     Ok(ring) => {
///         let mut bytes = vec![0u8; 4096];
///         let at = std::ptr::NonNull::from(&mut bytes[0]);
///         // SAFETY: the vector lives until the key is deregistered, and no work is submitted.
///         let key = unsafe { ring.register(at, bytes.len()) }?;
///         ring.deregister(key)?;
///     }
///     Err(why) => println!("{why}"),
/// }
/// # Ok::<(), kvmem::register::RegistrarError>(())
/// ```
pub struct IoUring {
    name: String,
    ring: Box<dyn RingFd>,
    /// The slot of the table that has the index 0 in `slots`.
    first: u32,
    slots: Mutex<BufferSlots>,
    /// Locked while registering: the kernel registers one buffer at a time, too.
    side: Mutex<SideRing>,
    /// Whether `RLIMIT_MEMLOCK` applies to the ring.
    counted: bool,
}

/// A descriptor of a ring, owned or shared.
trait RingFd: AsFd + Send + Sync {}

impl<R: AsFd + Send + Sync> RingFd for R {}

/// The side ring of a ring.
struct SideRing {
    /// `None`: buffers are registered in the table itself.
    ring: Option<OwnedFd>,
    /// The current number of slots of the main ring's table.
    table: u32,
}

/// The table that [`IoUring::adopt`] uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingTable {
    /// A new table with this number of slots, 1 to 16,384, all for the registrar. The ring must not
    /// have a table.
    New(u32),
    /// These slots of the ring's table. They are emptied, and belong to the registrar until it is
    /// dropped.
    Existing(Range<u32>),
}

impl IoUring {
    /// Creates a ring, named `io_uring:<index>`.
    ///
    /// Takes about 0.1 ms, two descriptors, and 16 KiB that newer kernels charge as pinned.
    ///
    /// # Errors
    /// [`NotAvailable`] with the cause (the kernel, a seccomp profile, a setting), and what to do.
    pub fn new(index: usize) -> Result<IoUring, NotAvailable> {
        // Checked before the ring is created, which may take the last descriptor.
        let counted = !memlock::exempt();
        let ring = retry(|| sys::ring_setup(1))
            .map_err(|errno| failure::unavailable(Call::IoUringSetup, errno))?;
        retry(|| sys::ring_table(ring.as_fd(), SLOTS))
            .map_err(|errno| failure::unavailable(Call::RingTable, errno))?;
        let side = side_ring(ring.as_fd());
        let max_slots = if side.is_some() { MAX_SLOTS } else { SLOTS };
        Ok(IoUring {
            name: format!("{BACKEND}:{index}"),
            ring: Box::new(ring),
            first: 0,
            slots: Mutex::new(BufferSlots::new(max_slots)),
            side: Mutex::new(SideRing { ring: side, table: SLOTS }),
            counted,
        })
    }

    /// Uses an existing ring, for work with fixed buffers that other code submits to it.
    ///
    /// `ring` is anything that has the ring's descriptor: a duplicate
    /// (`ring.as_fd().try_clone_to_owned()`), or the ring in an `Arc`. A ring for a single thread
    /// (`IORING_SETUP_SINGLE_ISSUER`) works only if that thread does all registering.
    ///
    /// # Errors
    /// [`RegistrarError`] with `EBUSY` if a new table is requested and the ring has one; with
    /// `ENXIO` if the ring has no table; with `EINVAL` if it has no such slots. Other numbers
    /// mean that it is not a ring, or forbids registering.
    pub fn adopt(
        name: impl Into<String>,
        ring: impl AsFd + Send + Sync + 'static,
        table: RingTable,
    ) -> Result<IoUring, RegistrarError> {
        let (first, max_slots, side) = match table {
            RingTable::New(slots) => {
                retry(|| sys::ring_table(ring.as_fd(), slots))
                    .map_err(|errno| failure::adopting(Call::RingTable, errno))?;
                (0, slots, side_ring(ring.as_fd()))
            }
            // A clone could drop buffers in foreign slots.
            RingTable::Existing(slots) => {
                if slots.is_empty() || slots.end > MAX_SLOTS {
                    return Err(failure::adopting(Call::RingEmpty, Errno::EINVAL));
                }
                retry(|| sys::ring_empty(ring.as_fd(), slots.clone()))
                    .map_err(|errno| failure::adopting(Call::RingEmpty, errno))?;
                (slots.start, slots.end - slots.start, None)
            }
        };
        Ok(IoUring {
            name: name.into(),
            ring: Box::new(ring),
            first,
            slots: Mutex::new(BufferSlots::new(max_slots)),
            side: Mutex::new(SideRing { ring: side, table: first + max_slots }),
            counted: !memlock::exempt(),
        })
    }

    /// Checks that rings can be created: creates one and closes it.
    ///
    /// # Errors
    /// The errors of [`new`](IoUring::new).
    pub fn available() -> Result<(), NotAvailable> {
        IoUring::new(0).map(drop)
    }

    /// Returns the limit as it applies to this ring, with the known part of its use.
    fn memlock(&self) -> Option<Memlock> {
        let limit = memlock::unexempted_limit(Account::Rings).filter(|_| self.counted)?;
        // Relaxed: other rings can use the rest of the limit at any time.
        Some(Memlock { used_bytes: PINNED.load(Ordering::Relaxed), ..limit })
    }

    /// Fills a slot, through the side ring if possible: see the head of this file.
    ///
    /// # Safety
    /// The conditions of [`Registrar::register`].
    unsafe fn fill(
        &self,
        side: &mut SideRing,
        reserved: &ReservedSlot,
        at: NonNull<u8>,
        len: usize,
    ) -> Filled {
        let slot = self.first + reserved.slot;
        // A hugepage that the next buffer begins in would be charged twice.
        let (start, end) = (at.as_ptr() as usize, (at.as_ptr() as usize).wrapping_add(len));
        let splits = !start.is_multiple_of(HUGEPAGE) || !end.is_multiple_of(HUGEPAGE);
        let direct = !reserved.is_last || slot < side.table && splits && self.memlock().is_some();
        let side_fd = side.ring.as_ref().filter(|_| !direct);
        if let Some(side_fd) = side_fd {
            // SAFETY: the caller's promise; no work is submitted to the side ring.
            match unsafe { pin(side_fd.as_fd(), 0, at, len) } {
                // A larger hugepage may be charged less in the table itself.
                Err((_, Errno::ENOMEM)) if self.counted && slot < side.table => {}
                Err(failed) => return Err(failed),
                Ok(()) => return self.take_over(side, slot),
            }
        }
        // SAFETY: the caller's promise.
        unsafe { pin(self.ring.as_fd(), slot, at, len) }
    }

    /// Empties consecutive slots whose release has begun. On failure they keep their buffers.
    fn empty(&self, releasing: &[(Key, u32, u64)]) -> sys::Result<()> {
        let (Some((_, first, _)), Some((_, last, _))) = (releasing.first(), releasing.last())
        else {
            return Ok(());
        };
        let range = self.first + first..self.first + last + 1;
        let emptied = retry(|| sys::ring_empty(self.ring.as_fd(), range.clone()));
        let mut slots = lock(&self.slots);
        for (key, slot, bytes) in releasing {
            if emptied.is_err() {
                slots.cancel_release(key.handle, *bytes);
                continue;
            }
            slots.free_slot(*slot);
            if self.counted {
                // Relaxed: only a statistic.
                PINNED.fetch_sub(*bytes, Ordering::Relaxed);
            }
        }
        emptied
    }

    /// Moves the side ring's buffer into a slot.
    fn take_over(&self, side: &mut SideRing, slot: u32) -> Filled {
        let Some(side_fd) = side.ring.as_ref().map(AsFd::as_fd) else { return Ok(()) };
        let cloned = retry(|| sys::ring_clone(self.ring.as_fd(), side_fd, 0, slot));
        if cloned.is_ok() {
            side.table = side.table.max(slot + 1);
        }
        if retry(|| sys::ring_empty(side_fd, 0..1)).is_err() {
            // The side ring would keep the pages pinned. Closing it unpins them a moment later.
            side.ring = one_slot();
            if side.ring.is_none() {
                lock(&self.slots).shrink(side.table - self.first);
            }
        }
        cloned.map_err(|errno| (Call::RingClone, errno))
    }
}

/// Success, or the call that failed.
type Filled = Result<(), (Call, Errno)>;

/// Pins a range into a slot of a ring.
///
/// # Safety
/// The conditions of [`Registrar::register`].
unsafe fn pin(ring: BorrowedFd<'_>, slot: u32, at: NonNull<u8>, len: usize) -> Filled {
    // SAFETY: the caller's promise.
    retry(|| unsafe { sys::ring_fill(ring, slot, at, len) })
        .map_err(|errno| (Call::RingFill, errno))
}

/// Creates a ring with one slot.
fn one_slot() -> Option<OwnedFd> {
    let ring = retry(|| sys::ring_setup(1)).ok()?;
    retry(|| sys::ring_table(ring.as_fd(), 1)).ok()?;
    Some(ring)
}

/// Creates a side ring from which buffers can be cloned into `ring`, whose table is empty. `None`
/// if the kernel does not support that.
fn side_ring(ring: BorrowedFd<'_>) -> Option<OwnedFd> {
    let side = one_slot()?;
    retry(|| sys::ring_clone(ring, side.as_fd(), 0, 0)).ok()?;
    Some(side)
}

/// Makes a call, and repeats it while it is interrupted.
fn retry<T>(mut call: impl FnMut() -> sys::Result<T>) -> sys::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics under the locks that would leave the slots inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registrar for IoUring {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        Limits {
            device: self.name.clone(),
            max_bytes: MAX_BYTES,
            max_keys: lock(&self.slots).free().into(),
            preferred_chunk_bytes: Some(PREFERRED_BYTES),
            memlock: self.memlock(),
        }
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        let mut side = lock(&self.side);
        let reserved = lock(&self.slots).reserve().ok_or_else(failure::full)?;
        // SAFETY: the caller's promise.
        let filled = unsafe { self.fill(&mut side, &reserved, at, len) };
        drop(side);
        let mut slots = lock(&self.slots);
        if let Err((call, errno)) = filled {
            slots.free_slot(reserved.slot);
            drop(slots);
            return Err(failure::registering(call, errno, len, self.memlock()));
        }
        let bytes = pages_of(at, len);
        if self.counted {
            // Relaxed: only a statistic.
            PINNED.fetch_add(bytes, Ordering::Relaxed);
        }
        let handle = slots.fill(reserved.slot, bytes);
        Ok(Key { handle, lkey: (self.first + reserved.slot).into(), rkey: None })
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        let releasing = lock(&self.slots).begin_release(key.handle);
        let (slot, bytes) = releasing.ok_or_else(|| failure::unknown(&self.name, key.handle))?;
        self.empty(&[(key, slot, bytes)]).map_err(failure::deregistering)
    }

    /// Deregisters several keys; consecutive slots are emptied in one call.
    fn deregister_all(&self, keys: &[Key]) -> Vec<Result<(), RegistrarError>> {
        let mut results: Vec<Result<(), RegistrarError>> = Vec::with_capacity(keys.len());
        let mut batch: Vec<(Key, u32, u64)> = Vec::with_capacity(keys.len());
        let flush = |batch: &mut Vec<(Key, u32, u64)>, results: &mut Vec<_>| {
            if self.empty(batch).is_ok() {
                results.extend(batch.iter().map(|_| Ok(())));
            } else {
                // Finds the failed keys one by one.
                results.extend(batch.iter().map(|(key, ..)| self.deregister(*key)));
            }
            batch.clear();
        };
        for key in keys {
            let releasing = lock(&self.slots).begin_release(key.handle);
            let next = batch.last().map(|(_, slot, _)| slot + 1);
            if next.is_some() && releasing.map(|(slot, _)| slot) != next {
                flush(&mut batch, &mut results);
            }
            match releasing {
                Some((slot, bytes)) => batch.push((*key, slot, bytes)),
                None => results.push(Err(failure::unknown(&self.name, key.handle))),
            }
        }
        flush(&mut batch, &mut results);
        results
    }
}

/// Returns the bytes of the base pages that a range touches.
fn pages_of(at: NonNull<u8>, len: usize) -> u64 {
    let page = sys::page_size();
    let before = at.as_ptr() as usize % page;
    ((before + len).div_ceil(page) * page) as u64
}

impl AsFd for IoUring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

impl Drop for IoUring {
    fn drop(&mut self) {
        // The ring may be open elsewhere: in a forked process, or by the code that lent it. Closing
        // our descriptor therefore does not suffice.
        for (slot, bytes) in lock(&self.slots).live() {
            let at = self.first + slot;
            // BufferSlots that cannot be emptied end with the ring.
            let _ = retry(|| sys::ring_empty(self.ring.as_fd(), at..at + 1));
            if self.counted {
                // Relaxed: only a statistic.
                PINNED.fetch_sub(bytes, Ordering::Relaxed);
            }
        }
    }
}

impl fmt::Debug for IoUring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = lock(&self.slots).free();
        f.debug_struct("IoUring")
            .field("name", &self.name)
            .field("ring", &self.ring.as_fd())
            .field("free_slots", &free)
            .finish_non_exhaustive()
    }
}

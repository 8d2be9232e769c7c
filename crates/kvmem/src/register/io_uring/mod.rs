//! *io_uring*: fixed buffers of a ring, pinned by the same path in the kernel that an RDMA driver
//! takes.
//!
//! A ring has a table of up to 16,384 slots, each for a buffer of up to 1 GiB. Filling a slot pins
//! the pages; work on the ring then names the slot (`buf_index`), and the kernel need not look for
//! the pages any more. [`IoUring::new`] makes a ring of its own, of which only the table is used;
//! [`IoUring::adopt`] works on a ring that somebody submits work to.
//!
//! ## The way around a search
//!
//! A hugepage counts once against the limit of pinned memory, even if several buffers of a ring lie
//! in it. To know that, the kernel searches, for each hugepage that it pins, the list of hugepages
//! of all buffers that stand in the table, and every slot of the table, used or not. So the time to
//! register a region grows with the square of its hugepages. Measured on Linux 6.18, THP in chunks
//! of 256 MiB, one ring:
//!
//! | region | table of 64 | of 1,024 | of 16,384 | by way of a side ring |
//! |---|---|---|---|---|
//! | 8 GiB | 50 ms | 52 ms | 82 ms | 7.5 ms |
//! | 16 GiB | 195 ms | 203 ms | 254 ms | 16 ms |
//!
//! The last column is what is done here. Each ring has a second one beside it with a table of a
//! single slot, which is empty: pages are pinned there, where nothing is to be searched; then the
//! buffer is cloned into the table of the ring, which costs no more than copying the table, and the
//! side ring lets go of it. Base pages, which are not searched, take 72 ms for 4 GiB either
//! way. That needs Linux 6.13 for a clone of one slot; older kernels register in the table itself.
//!
//! What the search is good for is lost: a hugepage in which several buffers lie counts once for
//! each of them. Newer kernels count so in any case. Where there is a limit, buffers that do not
//! begin and end with a hugepage are registered in the table itself.
//!
//! In Linux 6.13 to 6.18, before it was mended in their stable releases, such a clone drops every
//! buffer that stands after its slot. So only the slot behind all that are used is cloned into, and
//! the slots between them, when nothing else is left, are filled in place.
//!
//! ## The size of the table
//!
//! 1,024 slots from the beginning: 8 KiB of the kernel's memory and 14 µs, where 16,384 would be
//! 128 KiB and 170 µs and, without the side ring, 8 µs more for each hugepage. A clone into a slot
//! behind the end makes the table longer, so with the side ring there is room for all 16,384;
//! without it for 1,024, which is 1 TiB in chunks of 1 GiB.
//!
//! ## The size of chunks
//!
//! Registering a chunk in one ring after the other is quickest with chunks of 256 MiB or less: what
//! the kernel keeps of each page is then still in the cache when the next ring comes to it. Eight
//! rings, 8 GiB of THP: 36 ms, beside 57 with chunks of 1 GiB; base pages take a tenth to a fifth
//! less time.

mod refusal;
mod slots;

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::slots::{Slots, Taken};
use super::{Account, Key, Limits, Memlock, NotAvailable, Registrar, RegistrarError, memlock};
use crate::sync::{AtomicU64, Ordering};
use crate::sys::{self, Call, Errno};

const BACKEND: &str = "io_uring";
/// The most bytes of one buffer: `SZ_1G` in the kernel's `io_uring/rsrc.c`.
const MAX_BYTES: u64 = 1 << 30;
/// The most slots of a table: `IORING_MAX_REG_BUFFERS` there.
const MAX_SLOTS: u32 = 1 << 14;
/// Slots of a new table.
const SLOTS: u32 = 1 << 10;
/// Bytes of a usual hugepage.
const HUGEPAGE: usize = 2 << 20;
/// Bytes for a key at which several rings are quickest.
const GOOD_BYTES: u64 = 256 << 20;

/// Bytes that rings of this process have pinned, of those rings to which the limit applies. The
/// limit is for all rings of the user, so this is the part of it that is known.
static PINNED: AtomicU64 = AtomicU64::new(0);

/// The fixed buffers of a ring.
///
/// The key to a buffer: `lkey` is its slot, the `buf_index` of work on the ring. `handle` is the
/// slot too, with a number above bit 32 that tells it from earlier keys to the same slot. There is
/// no `rkey`.
///
/// Registering and deregistering may be done by several threads; of each ring, one registers at a
/// time. A buffer that is deregistered cannot be named by new work at once. Its pages are let go of
/// when the last request that uses it is done: at once, if there is none.
///
/// Where `RLIMIT_MEMLOCK` applies, hugepages count whole, and the limit is for all rings of the
/// user.
///
/// Dropping it takes out of the table what still stands there, and closes its ring.
///
/// ```
/// use kvmem::register::{IoUring, Registrar};
///
/// match IoUring::new(0) {
///     Ok(ring) => {
///         let mut bytes = vec![0u8; 4096];
///         let at = std::ptr::NonNull::from(&mut bytes[0]);
///         // SAFETY: the vector stays until the key is given back, and no work is submitted.
///         let key = unsafe { ring.register(at, bytes.len()) }?;
///         ring.deregister(key)?;
///     }
///     Err(why) => println!("{why}"),
/// }
/// # Ok::<(), kvmem::register::RegistrarError>(())
/// ```
pub struct IoUring {
    name: String,
    ring: Box<dyn Ring>,
    /// Slot 0 of the books is this slot of the table.
    first: u32,
    slots: Mutex<Slots>,
    /// Held while registering: the kernel does it one at a time too.
    side: Mutex<Side>,
    /// Whether `RLIMIT_MEMLOCK` applies to it.
    counted: bool,
}

/// Somebody's descriptor of a ring.
trait Ring: AsFd + Send + Sync {}

impl<R: AsFd + Send + Sync> Ring for R {}

/// The ring beside a ring.
struct Side {
    /// `None`: buffers are registered in the table itself.
    ring: Option<OwnedFd>,
    /// Slots that the table has by now.
    table: u32,
}

/// Which table [`IoUring::adopt`] uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingTable {
    /// A new one with so many slots, 1 to 16,384, all of them the registrar's. The ring has none
    /// yet.
    New(u32),
    /// These slots of the table that the ring has. They are emptied, and are the registrar's as
    /// long as it lives.
    Existing(Range<u32>),
}

impl IoUring {
    /// A new ring, called `io_uring:<index>`.
    ///
    /// Costs about 0.1 ms, two descriptors, and 16 KiB that newer kernels count as pinned.
    ///
    /// # Errors
    /// [`NotAvailable`]: what forbids it (the kernel, a seccomp profile, a setting), and what to do.
    pub fn new(index: usize) -> Result<IoUring, NotAvailable> {
        // Asked before there is a ring, for which the last descriptor may be needed.
        let counted = !memlock::exempt();
        let ring = retry(|| sys::ring_setup(1))
            .map_err(|errno| refusal::unavailable(Call::IoUringSetup, errno))?;
        retry(|| sys::ring_table(ring.as_fd(), SLOTS))
            .map_err(|errno| refusal::unavailable(Call::RingTable, errno))?;
        let side = side_ring(ring.as_fd());
        let most = if side.is_some() { MAX_SLOTS } else { SLOTS };
        Ok(IoUring {
            name: format!("{BACKEND}:{index}"),
            ring: Box::new(ring),
            first: 0,
            slots: Mutex::new(Slots::new(most)),
            side: Mutex::new(Side { ring: side, table: SLOTS }),
            counted,
        })
    }

    /// Uses somebody's ring, for work with fixed buffers that is submitted there.
    ///
    /// `ring` is anything with its descriptor: a second descriptor of it
    /// (`ring.as_fd().try_clone_to_owned()`), or the ring in an `Arc`. It must not have been
    /// made for a single thread (`IORING_SETUP_SINGLE_ISSUER`) unless that thread does all
    /// registering.
    ///
    /// # Errors
    /// [`RegistrarError`] with `EBUSY` if a new table is wanted and the ring has one, with `ENXIO` if it
    /// has none, with `EINVAL` if it has no such slots; with others if it is no ring, or
    /// forbids it.
    pub fn adopt(
        name: impl Into<String>,
        ring: impl AsFd + Send + Sync + 'static,
        table: RingTable,
    ) -> Result<IoUring, RegistrarError> {
        let (first, most, side) = match table {
            RingTable::New(slots) => {
                retry(|| sys::ring_table(ring.as_fd(), slots))
                    .map_err(|errno| refusal::adopting(Call::RingTable, errno))?;
                (0, slots, side_ring(ring.as_fd()))
            }
            // A clone could drop buffers that are not ours.
            RingTable::Existing(slots) => {
                if slots.is_empty() || slots.end > MAX_SLOTS {
                    return Err(refusal::adopting(Call::RingEmpty, Errno::EINVAL));
                }
                retry(|| sys::ring_empty(ring.as_fd(), slots.clone()))
                    .map_err(|errno| refusal::adopting(Call::RingEmpty, errno))?;
                (slots.start, slots.end - slots.start, None)
            }
        };
        Ok(IoUring {
            name: name.into(),
            ring: Box::new(ring),
            first,
            slots: Mutex::new(Slots::new(most)),
            side: Mutex::new(Side { ring: side, table: first + most }),
            counted: !memlock::exempt(),
        })
    }

    /// Whether rings can be made here: one is, and closed again.
    ///
    /// # Errors
    /// As [`new`](IoUring::new).
    pub fn available() -> Result<(), NotAvailable> {
        IoUring::new(0).map(drop)
    }

    /// The limit as it holds for this ring, with what is known to be used of it.
    fn memlock(&self) -> Option<Memlock> {
        let limit = memlock::counted(Account::Rings).filter(|_| self.counted)?;
        // Relaxed: others can take what is left at any time.
        Some(Memlock { used_bytes: PINNED.load(Ordering::Relaxed), ..limit })
    }

    /// Fills a slot, by way of the side ring where that can be: see the head of this file.
    ///
    /// # Safety
    /// As [`Registrar::register`].
    unsafe fn fill(&self, side: &mut Side, taken: &Taken, at: NonNull<u8>, len: usize) -> Filled {
        let slot = self.first + taken.slot;
        // A hugepage that the next buffer begins in would count twice.
        let (start, end) = (at.as_ptr() as usize, (at.as_ptr() as usize).wrapping_add(len));
        let splits = !start.is_multiple_of(HUGEPAGE) || !end.is_multiple_of(HUGEPAGE);
        let direct = !taken.is_last || slot < side.table && splits && self.memlock().is_some();
        let beside = side.ring.as_ref().filter(|_| !direct);
        if let Some(beside) = beside {
            // SAFETY: the caller's promise; nobody submits work to the side ring.
            match unsafe { pin(beside.as_fd(), 0, at, len) } {
                // A larger hugepage may count less in the table itself.
                Err((_, Errno::ENOMEM)) if self.counted && slot < side.table => {}
                Err(refused) => return Err(refused),
                Ok(()) => return self.take_over(side, slot),
            }
        }
        // SAFETY: the caller's promise.
        unsafe { pin(self.ring.as_fd(), slot, at, len) }
    }

    /// Empties slots that were claimed and follow each other, or has them stand as they were.
    fn empty(&self, claimed: &[(Key, u32, u64)]) -> sys::Result<()> {
        let (Some((_, first, _)), Some((_, last, _))) = (claimed.first(), claimed.last()) else {
            return Ok(());
        };
        let range = self.first + first..self.first + last + 1;
        let emptied = retry(|| sys::ring_empty(self.ring.as_fd(), range.clone()));
        let mut slots = lock(&self.slots);
        for (key, slot, bytes) in claimed {
            if emptied.is_err() {
                slots.restore(key.handle, *bytes);
                continue;
            }
            slots.give_back(*slot);
            if self.counted {
                // Relaxed: a figure for people.
                PINNED.fetch_sub(*bytes, Ordering::Relaxed);
            }
        }
        emptied
    }

    /// Moves what the side ring has into a slot.
    fn take_over(&self, side: &mut Side, slot: u32) -> Filled {
        let Some(beside) = side.ring.as_ref().map(AsFd::as_fd) else { return Ok(()) };
        let cloned = retry(|| sys::ring_clone(self.ring.as_fd(), beside, 0, slot));
        if cloned.is_ok() {
            side.table = side.table.max(slot + 1);
        }
        if retry(|| sys::ring_empty(beside, 0..1)).is_err() {
            // It would keep the pages pinned. Closing it lets go of them, though a moment later.
            side.ring = one_slot();
            if side.ring.is_none() {
                lock(&self.slots).shrink(side.table - self.first);
            }
        }
        cloned.map_err(|errno| (Call::RingClone, errno))
    }
}

/// What was done, or the call that was refused.
type Filled = Result<(), (Call, Errno)>;

/// Pins a range into a slot of a ring.
///
/// # Safety
/// As [`Registrar::register`].
unsafe fn pin(ring: BorrowedFd<'_>, slot: u32, at: NonNull<u8>, len: usize) -> Filled {
    // SAFETY: the caller's promise.
    retry(|| unsafe { sys::ring_fill(ring, slot, at, len) })
        .map_err(|errno| (Call::RingFill, errno))
}

/// A ring with one slot.
fn one_slot() -> Option<OwnedFd> {
    let ring = retry(|| sys::ring_setup(1)).ok()?;
    retry(|| sys::ring_table(ring.as_fd(), 1)).ok()?;
    Some(ring)
}

/// A ring with one slot from which can be cloned into `ring`, whose table is empty. `None` where
/// that cannot be.
fn side_ring(ring: BorrowedFd<'_>) -> Option<OwnedFd> {
    let side = one_slot()?;
    retry(|| sys::ring_clone(ring, side.as_fd(), 0, 0)).ok()?;
    Some(side)
}

/// Makes a call again as long as it is interrupted.
fn retry<T>(mut call: impl FnMut() -> sys::Result<T>) -> sys::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics under the locks that leaves the books half written.
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
            preferred_chunk_bytes: Some(GOOD_BYTES),
            memlock: self.memlock(),
        }
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        let mut side = lock(&self.side);
        let taken = lock(&self.slots).take().ok_or_else(refusal::full)?;
        // SAFETY: the caller's promise.
        let filled = unsafe { self.fill(&mut side, &taken, at, len) };
        drop(side);
        let mut slots = lock(&self.slots);
        if let Err((call, errno)) = filled {
            slots.give_back(taken.slot);
            drop(slots);
            return Err(refusal::registering(call, errno, len, self.memlock()));
        }
        let bytes = pages_of(at, len);
        if self.counted {
            // Relaxed: a figure for people.
            PINNED.fetch_add(bytes, Ordering::Relaxed);
        }
        let handle = slots.fill(taken.slot, bytes);
        Ok(Key { handle, lkey: (self.first + taken.slot).into(), rkey: None })
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        let claimed = lock(&self.slots).claim(key.handle);
        let (slot, bytes) = claimed.ok_or_else(|| refusal::unknown(&self.name, key.handle))?;
        self.empty(&[(key, slot, bytes)]).map_err(refusal::deregistering)
    }

    /// Slots that follow each other are emptied in one call.
    fn deregister_all(&self, keys: &[Key]) -> Vec<Result<(), RegistrarError>> {
        let mut answers: Vec<Result<(), RegistrarError>> = Vec::with_capacity(keys.len());
        let mut run: Vec<(Key, u32, u64)> = Vec::with_capacity(keys.len());
        let end = |run: &mut Vec<(Key, u32, u64)>, answers: &mut Vec<_>| {
            if self.empty(run).is_ok() {
                answers.extend(run.iter().map(|_| Ok(())));
            } else {
                // Which of them it was is found out one by one.
                answers.extend(run.iter().map(|(key, ..)| self.deregister(*key)));
            }
            run.clear();
        };
        for key in keys {
            let claimed = lock(&self.slots).claim(key.handle);
            let next = run.last().map(|(_, slot, _)| slot + 1);
            if next.is_some() && claimed.map(|(slot, _)| slot) != next {
                end(&mut run, &mut answers);
            }
            match claimed {
                Some((slot, bytes)) => run.push((*key, slot, bytes)),
                None => answers.push(Err(refusal::unknown(&self.name, key.handle))),
            }
        }
        end(&mut run, &mut answers);
        answers
    }
}

/// Bytes of the base pages that a range lies in.
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
        // Somebody else may have the ring too: a process after a fork, or whoever lent it. So
        // closing it is not enough.
        for (slot, bytes) in lock(&self.slots).live() {
            let at = self.first + slot;
            // What is refused here goes with the ring.
            let _ = retry(|| sys::ring_empty(self.ring.as_fd(), at..at + 1));
            if self.counted {
                // Relaxed: a figure for people.
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

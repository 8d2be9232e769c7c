//! *Registrar*: a ring whose fixed buffers are keys.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::failure::{self, BACKEND};
use super::side_ring::{Filled, SideRing, pin};
use super::slots::{BufferSlots, ReservedSlot};
use super::table::{MAX_BYTES, MAX_SLOTS, NEW_SLOTS, RingTable};
use crate::register::backends::memlock;
use crate::register::backends::retry::retry;
use crate::register::{Account, Key, Limits, Memlock, NotAvailable, Registrar, RegistrarError};
use crate::sys::{self, Call, Errno};

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
        retry(|| sys::ring_table(ring.as_fd(), NEW_SLOTS))
            .map_err(|errno| failure::unavailable(Call::RingTable, errno))?;
        let side = SideRing::new(ring.as_fd(), NEW_SLOTS);
        let max_slots = if side.ring().is_some() { MAX_SLOTS } else { NEW_SLOTS };
        Ok(IoUring {
            name: format!("{BACKEND}:{index}"),
            ring: Box::new(ring),
            first: 0,
            slots: Mutex::new(BufferSlots::new(max_slots)),
            side: Mutex::new(side),
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
                (0, slots, SideRing::new(ring.as_fd(), slots))
            }
            // A clone could drop buffers in foreign slots.
            RingTable::Existing(slots) => {
                if slots.is_empty() || slots.end > MAX_SLOTS {
                    return Err(failure::adopting(Call::RingEmpty, Errno::EINVAL));
                }
                retry(|| sys::ring_empty(ring.as_fd(), slots.clone()))
                    .map_err(|errno| failure::adopting(Call::RingEmpty, errno))?;
                (slots.start, slots.end - slots.start, SideRing::none(slots.end))
            }
        };
        Ok(IoUring {
            name: name.into(),
            ring: Box::new(ring),
            first,
            slots: Mutex::new(BufferSlots::new(max_slots)),
            side: Mutex::new(side),
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

    /// Fills a slot, through the side ring if possible: see the head of the folder.
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
        let direct = !reserved.is_last || slot < side.table() && splits && self.memlock().is_some();
        if let Some(side_ring) = side.ring().filter(|_| !direct) {
            // SAFETY: the caller promises the conditions of `Registrar::register`. The buffer
            // leaves the side ring before this function returns, and its clone ends with the key.
            match unsafe { pin(side_ring, 0, at, len) } {
                // A larger hugepage may be charged less in the table itself.
                Err((_, Errno::ENOMEM)) if self.counted && slot < side.table() => {}
                Err(failed) => return Err(failed),
                Ok(()) => {
                    let filled = side.move_into(self.ring.as_fd(), slot);
                    if side.ring().is_none() {
                        lock(&self.slots).shrink(side.table() - self.first);
                    }
                    return filled;
                }
            }
        }
        // SAFETY: the caller promises the conditions of `Registrar::register` until the key is
        // deregistered, which empties the slot.
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
            copies_by_address: false,
            memlock: self.memlock(),
        }
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        let mut side = lock(&self.side);
        let reserved = lock(&self.slots).reserve().ok_or_else(failure::full)?;
        // SAFETY: the caller promises the conditions of this very function.
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
            // Slots that cannot be emptied end with the ring.
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

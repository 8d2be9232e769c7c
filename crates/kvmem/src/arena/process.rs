//! *Process arena*: one pool for a whole process, and a mapping of its own for whatever the pool
//! does not serve.
//!
//! Whoever replaces `mmap` in an engine has two calls, allocate and free, and wants each of them to
//! do the right thing:
//!
//! - If the pool is on and has room, an allocation is a piece of it, got by moving a cursor
//!   ([`BumpArena`]). Freeing it is counted and no more: the pool gives its memory back as a whole.
//! - Else the allocation is a mapping of its own, as aligned as was asked for (the kernel aligns to
//!   pages only). Freeing it unmaps it.
//!
//! Mappings stand in a list under a lock; a system call is at hand on that way, so the lock costs
//! nothing. The list is what makes a free safe to get wrong: nothing is unmapped that was not
//! mapped here, and its length need not be said again. The pool keeps no list. Of its addresses it
//! knows whether they were handed out at all, and how many.
//!
//! No silent fallback: [`ProcessArena::stats`] says how many requests the pool did not serve.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;

use super::own_pages::OwnPages;
use super::{
    ArenaError, ArenaSettings, BumpArena, BumpError, BumpStats, FreeError, Ladder, PageSize,
    ProcessAllocError, Region, SetupError,
};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// Hands out pieces of one pool, or mappings where the pool is off or full.
///
/// [`get`](Self::get) is the one of the process; others can be made, for tests or for parts of a
/// process.
///
/// ```
/// use kvmem::arena::{ArenaSettings, Freed, ProcessArena};
///
/// let arena = ProcessArena::new(ArenaSettings::pool(1 << 20))?;
/// let small = arena.allocate(100_000, 64)?.cast();
/// let large = arena.allocate(2 << 20, 64)?.cast(); // more than the pool has
/// let stats = arena.stats();
/// assert_eq!((stats.pool_allocations, stats.mapped_allocations), (1, 1));
///
/// // SAFETY: neither is used after this.
/// unsafe {
///     assert_eq!(arena.free(small)?, Freed::Counted);
///     assert_eq!(arena.free(large)?, Freed::Unmapped { bytes: 2 << 20 });
///     assert!(arena.free(large).is_err(), "it is gone already");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ProcessArena {
    settings: ArenaSettings,
    pool: Option<BumpArena<Region>>,
    allocations: Counter,
    frees: Counter,
    mapped: Mutex<Mapped>,
}

/// A counter on cache lines of its own.
#[repr(align(128))]
struct Counter(AtomicU64);

/// The mappings that are allocated, and how many there were.
struct Mapped {
    live: BTreeMap<usize, OwnPages>,
    allocations: u64,
    frees: u64,
    bytes: usize,
}

/// What a free did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The address was the pool's: the free was counted.
    Counted,
    /// The address was a mapping, which is gone.
    Unmapped {
        /// Bytes that were mapped: what was asked for, in whole pages.
        bytes: usize,
    },
}

/// What an arena has done so far. Frees never exceed allocations, also while threads go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStats {
    /// The pool, if there is one.
    pub pool: Option<BumpStats>,
    /// Requests that the pool has served.
    pub pool_allocations: u64,
    /// Of those, how many were freed. Their memory is not used again.
    pub pool_frees: u64,
    /// Requests that got a mapping of their own: all of them if there is no pool, else those for
    /// which it had no room.
    pub mapped_allocations: u64,
    /// Of those, how many were freed.
    pub mapped_frees: u64,
    /// Bytes mapped for those that were not, in whole pages.
    pub mapped_bytes: usize,
}

impl ProcessArena {
    /// An arena as the settings say. The pool is mapped now; its length is what was asked for, in
    /// whole pages.
    ///
    /// # Errors
    ///
    /// [`SetupError::Map`] if the pool cannot be mapped.
    ///
    /// ```
    /// # use kvmem::arena::{ArenaSettings, ProcessArena};
    /// let arena = ProcessArena::new(ArenaSettings::pool(1 << 20))?;
    /// assert_eq!(arena.stats().pool.map(|pool| pool.left), Some(1 << 20));
    /// // More than there are addresses.
    /// assert!(ProcessArena::new(ArenaSettings::pool(usize::MAX)).is_err());
    /// # Ok::<(), kvmem::arena::SetupError>(())
    /// ```
    pub fn new(settings: ArenaSettings) -> Result<Self, SetupError> {
        let pool = match settings.pool_bytes {
            Some(pool_bytes) => Some(
                map_pool(pool_bytes).map_err(|source| SetupError::Map { pool_bytes, source })?,
            ),
            None => None,
        };
        Ok(ProcessArena {
            settings,
            pool: pool.map(BumpArena::new),
            allocations: Counter(AtomicU64::new(0)),
            frees: Counter(AtomicU64::new(0)),
            mapped: Mutex::new(Mapped {
                live: BTreeMap::new(),
                allocations: 0,
                frees: 0,
                bytes: 0,
            }),
        })
    }

    /// The settings it was made with.
    pub fn settings(&self) -> ArenaSettings {
        self.settings
    }

    /// `size` bytes at a multiple of `align`, all zero, until they are freed or the arena is
    /// dropped.
    ///
    /// From the pool: lock-free, two atomic read-modify-writes on different lines, the second of
    /// which counts. Else the time of a system call.
    ///
    /// # Errors
    ///
    /// [`ProcessAllocError`]; never because the pool is full.
    ///
    /// ```
    /// # use kvmem::arena::{ArenaSettings, ProcessArena};
    /// let arena = ProcessArena::new(ArenaSettings::off())?;
    /// let bytes = arena.allocate(100, 1 << 21)?;
    /// assert_eq!((bytes.len(), bytes.cast::<u8>().addr().get() % (1 << 21)), (100, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocate(&self, size: usize, align: usize) -> Result<NonNull<[u8]>, ProcessAllocError> {
        let layout = BumpError::layout(size, align).map_err(ProcessAllocError::Refused)?;
        if let Some(pool) = &self.pool
            && let Ok(bytes) = pool.alloc(layout)
        {
            // Relaxed: whoever frees these bytes was given them after this; see `free_in_pool`.
            self.allocations.0.fetch_add(1, Ordering::Relaxed);
            return Ok(bytes);
        }
        let mapping = OwnPages::new(size, align).map_err(|errno| ProcessAllocError::Map {
            requested: size,
            align,
            errno,
        })?;
        let base = mapping.base();
        let mut mapped = self.mapped.lock();
        mapped.allocations += 1;
        mapped.bytes += mapping.len();
        mapped.live.insert(base.addr().get(), mapping);
        Ok(NonNull::slice_from_raw_parts(base, size))
    }

    /// Frees what begins at `address`, and says which kind it was.
    ///
    /// # Errors
    ///
    /// [`FreeError`]. A mapping that was freed before, an address inside of one, and one from
    /// elsewhere are always found out. In the pool, what was never handed out is found out, and
    /// a free too many in all.
    ///
    /// # Safety
    ///
    /// If a live allocation begins at `address`, nobody uses it from here on.
    ///
    /// ```
    /// # use kvmem::arena::{ArenaSettings, FreeError, ProcessArena};
    /// use std::ptr::NonNull;
    ///
    /// let arena = ProcessArena::new(ArenaSettings::off())?;
    /// let stranger = NonNull::from(&mut 0u8);
    /// // SAFETY: no allocation begins there.
    /// let refused = unsafe { arena.free(stranger) };
    /// assert_eq!(refused, Err(FreeError::Unknown { address: stranger.addr().get() }));
    /// # Ok::<(), kvmem::arena::SetupError>(())
    /// ```
    pub unsafe fn free(&self, address: NonNull<u8>) -> Result<Freed, FreeError> {
        match &self.pool {
            Some(pool) if pool.owns(address.as_ptr()) => self.free_in_pool(pool, address),
            _ => self.free_mapping(address.addr().get()),
        }
    }

    fn free_in_pool(
        &self,
        pool: &BumpArena<Region>,
        address: NonNull<u8>,
    ) -> Result<Freed, FreeError> {
        if !pool.has_handed_out(address.as_ptr()) {
            return Err(FreeError::Unknown { address: address.addr().get() });
        }
        // Acquire, here and where the exchange fails, pairs with the Release of the exchange: who
        // sees so many frees, sees the allocations they belong to. The caller's own, which
        // is not freed yet, was counted before it was given the address. So a free that is
        // due never finds too few.
        let mut frees = self.frees.0.load(Ordering::Acquire);
        loop {
            // Relaxed: ordered by the Acquire before it.
            let allocations = self.allocations.0.load(Ordering::Relaxed);
            if frees >= allocations {
                return Err(FreeError::AllFreed { address: address.addr().get(), allocations });
            }
            // Release pairs with the Acquire above and in `stats`.
            match self.frees.0.compare_exchange_weak(
                frees,
                frees + 1,
                Ordering::Release,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(Freed::Counted),
                Err(now) => frees = now,
            }
        }
    }

    fn free_mapping(&self, address: usize) -> Result<Freed, FreeError> {
        let mut mapped = self.mapped.lock();
        let mapping = mapped.live.remove(&address).ok_or(FreeError::Unknown { address })?;
        let bytes = mapping.len();
        mapped.frees += 1;
        mapped.bytes -= bytes;
        drop(mapped);
        // Out of the lock: to unmap gigabytes takes a while.
        match mapping.unmap() {
            Ok(()) => Ok(Freed::Unmapped { bytes }),
            Err((mapping, errno)) => {
                // The range is still mapped, so nobody else can have been given this address.
                let mut mapped = self.mapped.lock();
                mapped.frees -= 1;
                mapped.bytes += bytes;
                mapped.live.insert(address, mapping);
                Err(FreeError::Unmap { address, bytes, errno })
            }
        }
    }

    /// Whether the pool has handed out this address, or a mapping of this arena that is live
    /// contains it. O(log n) in the number of mappings.
    ///
    /// ```
    /// # use kvmem::arena::{ArenaSettings, ProcessArena};
    /// let arena = ProcessArena::new(ArenaSettings::off())?;
    /// let bytes = arena.allocate(100, 1)?;
    /// assert!(arena.owns(bytes.as_ptr().cast()) && !arena.owns(&0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn owns(&self, address: *const u8) -> bool {
        if let Some(pool) = &self.pool
            && pool.owns(address)
        {
            return pool.has_handed_out(address);
        }
        let mapped = self.mapped.lock();
        let below = mapped.live.range(..=address.addr()).next_back();
        below.is_some_and(|(start, mapping)| address.addr() - start < mapping.len())
    }

    /// What has been done so far. Takes the lock of the mappings; the pool goes on meanwhile.
    ///
    /// ```
    /// # use kvmem::arena::{ArenaSettings, ProcessArena};
    /// let arena = ProcessArena::new(ArenaSettings::off())?;
    /// arena.allocate(100, 1)?;
    /// let stats = arena.stats();
    /// assert_eq!((stats.pool, stats.mapped_allocations), (None, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stats(&self) -> ProcessStats {
        // Acquire pairs with the Release in `free_in_pool`. Frees are read first: the allocations
        // of all that are seen are then seen as well.
        let pool_frees = self.frees.0.load(Ordering::Acquire);
        let pool_allocations = self.allocations.0.load(Ordering::Relaxed);
        let mapped = self.mapped.lock();
        ProcessStats {
            pool: self.pool.as_ref().map(BumpArena::stats),
            pool_allocations,
            pool_frees,
            mapped_allocations: mapped.allocations,
            mapped_frees: mapped.frees,
            mapped_bytes: mapped.bytes,
        }
    }
}

/// The memory of the pool: plain memory of the process, which children and core dumps have as well,
/// in transparent hugepages if there is enough for one. What it is made of is decided here and
/// nowhere else.
fn map_pool(bytes: usize) -> Result<Region, ArenaError> {
    let page = if bytes < PageSize::Thp.bytes() { PageSize::Base } else { PageSize::Thp };
    Region::builder(bytes).ladder(Ladder::from(page)).dont_fork(false).dont_dump(false).map()
}

impl fmt::Debug for ProcessArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessArena")
            .field("settings", &self.settings)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

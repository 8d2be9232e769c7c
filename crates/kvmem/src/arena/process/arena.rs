//! *Process arena*: one pool for a whole process, and a separate mapping for each request that the
//! pool cannot serve.
//!
//! A program that replaces `mmap` in an engine needs two calls, allocate and free:
//!
//! - If the pool is on and has room, an allocation is a piece of the pool, taken by moving a cursor
//!   ([`BumpArena`]). Freeing it only counts the free: the pool returns its memory as a whole.
//! - Otherwise the allocation is a mapping of its own with the requested alignment (the kernel
//!   itself aligns to pages only). Freeing it unmaps it.
//!
//! The mappings are in a list under a lock. Both calls make a system call on this path anyway, so
//! the lock costs nothing noticeable. The list makes a wrong free harmless: only addresses that
//! were mapped here are unmapped, and the caller need not repeat the length. The pool keeps no
//! list. It knows only whether an address was handed out, and how many allocations and frees there
//! were.
//!
//! There is no silent fallback: [`ProcessArena::stats`] counts the requests that the pool did not
//! serve.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;

use super::error::{FreeError, ProcessAllocError, SetupError};
use super::own_pages::OwnPages;
use super::settings::ArenaSettings;
use crate::arena::{ArenaError, BumpArena, BumpError, BumpStats, Ladder, PageSize, Region};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// An allocator that hands out pieces of one pool, or mappings where the pool is off or full.
///
/// [`get`](Self::get) returns the arena of the process. Further arenas can be made for tests or for
/// parts of a process.
///
/// ```
/// use kvmem::arena::{ArenaSettings, FreeOutcome, ProcessArena};
///
/// let arena = ProcessArena::new(ArenaSettings::pool(1 << 20))?;
/// let small = arena.allocate(100_000, 64)?.cast();
/// let large = arena.allocate(2 << 20, 64)?.cast(); // more than the pool has
/// let stats = arena.stats();
/// assert_eq!((stats.pool_allocations, stats.mapped_allocations), (1, 1));
///
/// // SAFETY: neither allocation is used after this.
/// unsafe {
///     assert_eq!(arena.free(small)?, FreeOutcome::Counted);
///     assert_eq!(arena.free(large)?, FreeOutcome::Unmapped { bytes: 2 << 20 });
///     assert!(arena.free(large).is_err(), "it was freed before");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ProcessArena {
    settings: ArenaSettings,
    pool: Option<BumpArena<Region>>,
    allocations: Counter,
    frees: Counter,
    mapped: Mutex<LiveMappings>,
}

/// A counter on its own cache lines.
#[repr(align(128))]
struct Counter(AtomicU64);

/// The live mappings, and how many there have been.
struct LiveMappings {
    live: BTreeMap<usize, OwnPages>,
    allocations: u64,
    frees: u64,
    bytes: usize,
}

/// The effect of a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeOutcome {
    /// The address belonged to the pool: the free was counted.
    Counted,
    /// The address was a mapping, which was unmapped.
    Unmapped {
        /// The length of the mapping: the requested bytes in whole pages.
        bytes: usize,
    },
}

/// The counters of a process arena. Frees never exceed allocations, even while other threads use
/// the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStats {
    /// The pool, if there is one.
    pub pool: Option<BumpStats>,
    /// Requests served by the pool.
    pub pool_allocations: u64,
    /// Frees of pool allocations. Their memory is not used again.
    pub pool_frees: u64,
    /// Requests served by a mapping of their own: all of them without a pool, otherwise those for
    /// which the pool had no room.
    pub mapped_allocations: u64,
    /// Frees of such mappings.
    pub mapped_frees: u64,
    /// Bytes of the live mappings, in whole pages.
    pub mapped_bytes: usize,
}

impl ProcessArena {
    /// Makes an arena with these settings. Maps the pool now, with the requested length in whole
    /// pages.
    ///
    /// # Errors
    ///
    /// [`SetupError::Map`] if the pool cannot be mapped.
    ///
    /// ```
    /// # use kvmem::arena::{ArenaSettings, ProcessArena};
    /// let arena = ProcessArena::new(ArenaSettings::pool(1 << 20))?;
    /// assert_eq!(arena.stats().pool.map(|pool| pool.remaining), Some(1 << 20));
    /// // The address space is too small.
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
            mapped: Mutex::new(LiveMappings {
                live: BTreeMap::new(),
                allocations: 0,
                frees: 0,
                bytes: 0,
            }),
        })
    }

    /// Returns the settings that the arena was made with.
    #[must_use]
    pub fn settings(&self) -> ArenaSettings {
        self.settings
    }

    /// Allocates `size` bytes at a multiple of `align`, all zero, until they are freed or the arena
    /// is dropped.
    ///
    /// From the pool this is lock-free: two atomic read-modify-writes on different cache lines, the
    /// second of which counts. A mapping takes the time of a system call.
    ///
    /// # Errors
    ///
    /// [`ProcessAllocError`]; a full pool alone is no error.
    ///
    /// ```
    /// # use kvmem::arena::{ArenaSettings, ProcessArena};
    /// let arena = ProcessArena::new(ArenaSettings::off())?;
    /// let bytes = arena.allocate(100, 1 << 21)?;
    /// assert_eq!((bytes.len(), bytes.cast::<u8>().addr().get() % (1 << 21)), (100, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocate(&self, size: usize, align: usize) -> Result<NonNull<[u8]>, ProcessAllocError> {
        let layout = BumpError::layout(size, align).map_err(ProcessAllocError::Invalid)?;
        if let Some(pool) = &self.pool
            && let Ok(bytes) = pool.allocate(layout)
        {
            // Relaxed: a thread that frees these bytes received them after this count; see
            // `free_in_pool`.
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

    /// Frees the allocation that begins at `address`, and returns its kind.
    ///
    /// # Errors
    ///
    /// [`FreeError`]. A second free of a mapping, an address inside a mapping, and an address of
    /// another allocator are always detected. In the pool, addresses that were never handed out are
    /// detected, and one free more than there were allocations.
    ///
    /// # Safety
    ///
    /// If a live allocation begins at `address`, no thread uses it any more.
    ///
    /// ```
    /// # use kvmem::arena::{ArenaSettings, FreeError, ProcessArena};
    /// use std::ptr::NonNull;
    ///
    /// let arena = ProcessArena::new(ArenaSettings::off())?;
    /// let foreign = NonNull::from(&mut 0u8);
    /// // SAFETY: no allocation begins there.
    /// let result = unsafe { arena.free(foreign) };
    /// assert_eq!(result, Err(FreeError::Unknown { address: foreign.addr().get() }));
    /// # Ok::<(), kvmem::arena::SetupError>(())
    /// ```
    pub unsafe fn free(&self, address: NonNull<u8>) -> Result<FreeOutcome, FreeError> {
        match &self.pool {
            Some(pool) if pool.owns(address.as_ptr()) => self.free_in_pool(pool, address),
            _ => self.free_mapping(address.addr().get()),
        }
    }

    fn free_in_pool(
        &self,
        pool: &BumpArena<Region>,
        address: NonNull<u8>,
    ) -> Result<FreeOutcome, FreeError> {
        if !pool.has_handed_out(address.as_ptr()) {
            return Err(FreeError::Unknown { address: address.addr().get() });
        }
        // Acquire, here and where the exchange fails, pairs with the Release of the exchange: a
        // thread that sees N frees also sees the allocations that they belong to. The caller's own
        // allocation, which is not freed yet, was counted before the caller received its address. A
        // valid free therefore always finds more allocations than frees.
        let mut frees = self.frees.0.load(Ordering::Acquire);
        loop {
            // Relaxed: ordered by the preceding Acquire.
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
                Ok(_) => return Ok(FreeOutcome::Counted),
                Err(now) => frees = now,
            }
        }
    }

    fn free_mapping(&self, address: usize) -> Result<FreeOutcome, FreeError> {
        let mut mapped = self.mapped.lock();
        let mapping = mapped.live.remove(&address).ok_or(FreeError::Unknown { address })?;
        let bytes = mapping.len();
        mapped.frees += 1;
        mapped.bytes -= bytes;
        drop(mapped);
        // Outside the lock: unmapping gigabytes takes a while.
        match mapping.unmap() {
            Ok(()) => Ok(FreeOutcome::Unmapped { bytes }),
            Err((mapping, errno)) => {
                // The range is still mapped, so no other allocation can have this address.
                let mut mapped = self.mapped.lock();
                mapped.frees -= 1;
                mapped.bytes += bytes;
                mapped.live.insert(address, mapping);
                Err(FreeError::Unmap { address, bytes, errno })
            }
        }
    }

    /// Returns whether the pool has handed out this address, or a live mapping of this arena
    /// contains it. O(log n) in the number of mappings.
    ///
    /// ```
    /// # use kvmem::arena::{ArenaSettings, ProcessArena};
    /// let arena = ProcessArena::new(ArenaSettings::off())?;
    /// let bytes = arena.allocate(100, 1)?;
    /// assert!(arena.owns(bytes.as_ptr().cast()) && !arena.owns(&0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
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

    /// Returns the counters. Takes the lock of the mappings; the pool stays usable meanwhile.
    ///
    /// ```
    /// # use kvmem::arena::{ArenaSettings, ProcessArena};
    /// let arena = ProcessArena::new(ArenaSettings::off())?;
    /// arena.allocate(100, 1)?;
    /// let stats = arena.stats();
    /// assert_eq!((stats.pool, stats.mapped_allocations), (None, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> ProcessStats {
        // Acquire pairs with the Release in `free_in_pool`. The frees are read first, so the
        // allocations of all counted frees are counted as well.
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

/// Maps the memory of the pool: ordinary memory, inherited by children and included in core dumps,
/// in transparent hugepages if it is at least one hugepage long. Only this function chooses its
/// kind.
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

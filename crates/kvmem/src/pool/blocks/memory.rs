//! *Memory*: the bytes of a pool, divided into parts that are registered separately.
//!
//! ```text
//!  Pool ──┬──▶ offset allocator's metadata ──keeps──▶ PoolMemory ──▶ part 0: region, registration
//!  Pool ──┘        ▲                                      ▲          part 1: region, registration
//!  Block ──────────┘ (by number)                          │          …
//!     └───────────────────────────────────────────────────┘ (by number)
//! ```
//!
//! A block must stay valid after its pool is dropped, without a cost for each block: a counted
//! reference in each block would take two atomic read-modify-writes on a cache line that all
//! threads share. The offset allocator's metadata already knows whether any block is allocated. It
//! therefore keeps the memory, and drops it when the last pool *and* the last block are gone. A
//! block names the metadata by the number of its space (see the offset layer's registry). A table
//! leads from the same number to the memory.

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::arena::{ArenaError, Region};
use crate::register::{Key, RegisterError, RegistrationSet};
use crate::slab::ExtentCache;
use crate::sync::{AppendOnlyTable, FIRST};
use crate::sys;

/// The bytes of a pool.
#[derive(Debug)]
pub(in crate::pool) struct PoolMemory {
    base: Address,
    /// The parts in order of addresses, without gaps.
    parts: Box<[Part]>,
    /// Bytes of each part but the last, which may be shorter.
    part_bytes: usize,
    /// The inode number of the memory file; `None`: the memory is private.
    file: Option<u64>,
    /// The process that has the memory mapped; see [`sys::generation`].
    generation: u32,
}

/// The first address of a pool's memory.
#[derive(Clone, Copy, Debug)]
struct Address(NonNull<u8>);

// SAFETY: no method of this module reads or writes through the address. Users of the address need
// `unsafe` of their own, whichever thread they run in.
unsafe impl Send for Address {}
// SAFETY: as for `Send`; a shared `Address` gives out only copies of the address.
unsafe impl Sync for Address {}

/// A part of a pool's memory.
#[derive(Debug)]
pub(in crate::pool) struct Part {
    pub(in crate::pool) region: Arc<Region>,
    set: RwLock<Option<RegistrationSet>>,
}

impl Part {
    /// Locks the part's registration for reading; `None` if the part is not registered.
    pub(in crate::pool) fn set(&self) -> RwLockReadGuard<'_, Option<RegistrationSet>> {
        // A panic cannot leave the registration half stored: it is stored by one assignment.
        self.set.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the part's registration for writing.
    pub(in crate::pool) fn set_mut(&self) -> RwLockWriteGuard<'_, Option<RegistrationSet>> {
        self.set.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolMemory {
    /// Divides a region into parts of `part_bytes` bytes each.
    pub(in crate::pool) fn new(
        region: Region,
        part_bytes: usize,
        file: Option<u64>,
    ) -> Result<PoolMemory, ArenaError> {
        let base = Address(region.base());
        let part = |region| Part { region: Arc::new(region), set: RwLock::new(None) };
        let parts = region.split(part_bytes)?.into_iter().map(part).collect();
        Ok(PoolMemory { base, parts, part_bytes, file, generation: sys::generation() })
    }

    pub(in crate::pool) fn base(&self) -> NonNull<u8> {
        self.base.0
    }

    /// Returns whether this process is a forked child of the one that has the memory mapped. Forks
    /// are counted from [`sys::count_forks`] on.
    pub(super) fn is_forked(&self) -> bool {
        self.generation != sys::generation()
    }

    pub(in crate::pool) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the bytes of all parts.
    pub(in crate::pool) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.region.len()).sum()
    }

    /// Returns the parts that have a byte in a range.
    pub(in crate::pool) fn parts_in(&self, range: Range<usize>) -> &[Part] {
        let end = range.end.div_ceil(self.part_bytes).min(self.parts.len());
        &self.parts[(range.start / self.part_bytes).min(end)..end]
    }

    /// Returns the number by which references name the memory; 0 if it is private.
    pub(in crate::pool) fn number(&self) -> u64 {
        self.file.unwrap_or(0)
    }

    /// Calls `run` for each part that has a byte in a range, with the range as offsets into the
    /// part.
    pub(in crate::pool) fn each_in<T, E>(
        &self,
        range: Range<usize>,
        mut run: impl FnMut(&Region, Range<usize>) -> Result<T, E>,
    ) -> Result<Vec<T>, E> {
        let first = range.start / self.part_bytes;
        let parts = self.parts_in(range.clone()).iter().enumerate();
        let one = parts.map(|(number, part)| {
            let start = (first + number) * self.part_bytes;
            let end = start + part.region.len();
            run(&part.region, range.start.max(start) - start..range.end.min(end) - start)
        });
        one.collect()
    }

    /// Returns the pages of an unused range to the kernel. Returns the number of bytes returned,
    /// and of bytes that stay because their pages come from a pool of hugepages, which takes none
    /// back singly.
    pub(in crate::pool) fn discard(&self, range: Range<usize>) -> Result<(u64, u64), ArenaError> {
        let (mut discarded, mut stay) = (0, 0);
        self.each_in(range, |region, within| {
            for (piece, pages) in region.segments(within) {
                if piece.obtained.is_pooled() {
                    stay += pages.len() as u64;
                } else {
                    region.discard(pages.clone())?;
                    discarded += pages.len() as u64;
                }
            }
            Ok(())
        })?;
        Ok((discarded, stay))
    }

    /// Returns the key with which a registrar can reach all of a range.
    pub(in crate::pool) fn key(
        &self,
        device: &str,
        range: Range<u64>,
    ) -> Result<Key, RegisterError> {
        self.with_set(&range, |set, within| set.key_for(device, within)).unwrap_or_else(|| {
            Err(RegisterError::NoSuchDevice { device: device.to_owned(), have: Vec::new() })
        })
    }

    /// Returns the keys with which each registrar can reach all of a range, in the order of the
    /// registrars; none if there are no registrars.
    pub(in crate::pool) fn keys(
        &self,
        range: Range<u64>,
    ) -> Result<Vec<(String, Key)>, RegisterError> {
        self.with_set(&range, |set, within| {
            let key = |device: &str| Ok((device.to_owned(), set.key_for(device, within.clone())?));
            set.devices().map(key).collect()
        })
        .unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Calls `run` with the registration of the part that a range begins in, and with the range as
    /// offsets into the part.
    fn with_set<T>(
        &self,
        range: &Range<u64>,
        run: impl FnOnce(&RegistrationSet, Range<usize>) -> T,
    ) -> Option<T> {
        let part = range.start as usize / self.part_bytes;
        let start = part * self.part_bytes;
        let set = self.parts.get(part)?.set();
        set.as_ref().map(|set| run(set, range.start as usize - start..range.end as usize - start))
    }
}

/// The memory of each space, by the number of the space.
static MEMORIES: AppendOnlyTable<MemoryEntry> =
    AppendOnlyTable::new([const { MemoryEntry::new() }; FIRST], MemoryEntry::new);

struct MemoryEntry {
    memory: AtomicPtr<PoolMemory>,
    /// The first address of the memory: reaching it here saves one load.
    base: AtomicPtr<u8>,
}

impl MemoryEntry {
    const fn new() -> MemoryEntry {
        MemoryEntry {
            memory: AtomicPtr::new(ptr::null_mut()),
            base: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

/// Attaches memory to a space: blocks of the space find the memory, and the metadata of the space
/// keeps it until the space and all its blocks are gone.
///
/// # Safety
/// The space has no extent yet, and has never had memory. It never becomes longer than the memory.
pub(in crate::pool) unsafe fn attach(space: &ExtentCache, memory: &Arc<PoolMemory>) {
    let entry = MEMORIES.get(space.number());
    // Release, both stores: they pair with the Acquire in `of` and in `base_of`.
    entry.base.store(memory.base().as_ptr(), Ordering::Release);
    entry.memory.store(Arc::as_ptr(memory).cast_mut(), Ordering::Release);
    space.keep(Box::new(Arc::clone(memory)));
}

/// Returns the memory of a space.
///
/// # Safety
/// Memory was [attached](attach) to the space, and a block of the space exists while the result is
/// used.
pub(super) unsafe fn of<'a>(space: u32) -> &'a PoolMemory {
    // Acquire pairs with the Release in `attach`.
    // SAFETY: `attach` stored a pointer to a live `PoolMemory`, and gave the space's metadata a
    // counted reference to it. The metadata outlives the last block, which exists while the result
    // is used: so the value is not dropped meanwhile. It is never borrowed mutably.
    unsafe { &*MEMORIES.get(space).memory.load(Ordering::Acquire) }
}

/// Returns the first address of the memory of a space.
///
/// # Safety
/// Memory was [attached](attach) to the space, and a block of the space exists now.
#[inline(always)]
pub(super) unsafe fn base_of(space: u32) -> NonNull<u8> {
    // Acquire pairs with the Release in `attach`.
    let base = MEMORIES.get(space).base.load(Ordering::Acquire);
    // SAFETY: a block exists, so `attach` ran before and stored the address of a `NonNull`. A later
    // `attach` under the same number needs the space, and so this block, to be gone.
    unsafe { NonNull::new_unchecked(base) }
}

//! *Memory*: the bytes of a pool, cut into parts that are registered each by itself.
//!
//! ```text
//!  Pool ──┬──▶ books of offsets ──keep──▶ PoolMemory ──▶ part 0: region, registration
//!  Pool ──┘        ▲                         ▲       part 1: region, registration
//!  Block ──────────┘ (by number)             │       …
//!     └──────────────────────────────────────┘ (by number)
//! ```
//!
//! A block has to be good after its pool is gone, and must not pay for it: a counted reference in
//! each would be two atomic read-modify-writes on a line that all threads share. But the books of
//! offsets know anyway whether anything is allocated. So they keep the memory, and drop it when the
//! last pool *and* the last block are gone. A block names its books by a number (see the offset
//! layer's registry); a table by the same number leads to the memory.

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::arena::{ArenaError, Region};
use crate::register::{Key, RegisterError, RegistrationSet};
use crate::sync::{AppendOnlyTable, FIRST};

/// The bytes of a pool.
#[derive(Debug)]
pub(super) struct PoolMemory {
    /// The first address.
    base: NonNull<u8>,
    /// In order, without gaps.
    parts: Box<[Part]>,
    /// Bytes of each part but the last, which may be shorter.
    part_bytes: usize,
    /// The number of the memory file, if there is one.
    file: Option<u64>,
}

// SAFETY: an address, and what may be sent.
unsafe impl Send for PoolMemory {}
// SAFETY: as above; what changes is behind locks.
unsafe impl Sync for PoolMemory {}

/// A part of it.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) region: Arc<Region>,
    set: RwLock<Option<RegistrationSet>>,
}

impl Part {
    /// Its registration, if it is registered.
    pub(super) fn set(&self) -> RwLockReadGuard<'_, Option<RegistrationSet>> {
        // What is stored is stored whole.
        self.set.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, to be changed.
    pub(super) fn set_mut(&self) -> RwLockWriteGuard<'_, Option<RegistrationSet>> {
        self.set.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolMemory {
    /// A region as parts of `part_bytes` bytes each.
    pub(super) fn new(
        region: Region,
        part_bytes: usize,
        file: Option<u64>,
    ) -> Result<PoolMemory, ArenaError> {
        let base = region.base();
        let part = |region| Part { region: Arc::new(region), set: RwLock::new(None) };
        let parts = region.split(part_bytes)?.into_iter().map(part).collect();
        Ok(PoolMemory { base, parts, part_bytes, file })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub(super) fn part_bytes(&self) -> usize {
        self.part_bytes
    }

    /// Bytes of all parts.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.region.len()).sum()
    }

    /// The parts that have a byte in a range.
    pub(super) fn parts_in(&self, range: Range<usize>) -> &[Part] {
        let end = range.end.div_ceil(self.part_bytes).min(self.parts.len());
        &self.parts[(range.start / self.part_bytes).min(end)..end]
    }

    /// By what references name it; 0 if nobody else can have it.
    pub(super) fn number(&self) -> u64 {
        self.file.unwrap_or(0)
    }

    /// Runs with each part that has a byte in a range, and with the range as offsets into it.
    pub(super) fn each_in<T, E>(
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

    /// Gives back the pages of a range that is in nobody's use: how many bytes, and how many stay
    /// because they are pages of a pool, which gives none back one by one.
    pub(super) fn discard(&self, range: Range<usize>) -> Result<(u64, u64), ArenaError> {
        let (mut discarded, mut stay) = (0, 0);
        self.each_in(range, |region, within| {
            for (piece, pages) in region.segments(within) {
                if piece.got.is_pooled() {
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

    /// The key with which a registrar can reach all of a range.
    pub(super) fn key(&self, device: &str, range: Range<u64>) -> Result<Key, RegisterError> {
        self.with_set(&range, |set, within| set.key_for(device, within)).unwrap_or_else(|| {
            Err(RegisterError::NoSuchDevice { device: device.to_owned(), have: Vec::new() })
        })
    }

    /// The keys with which each registrar can reach all of a range, in the order of the registrars;
    /// none if there are no registrars.
    pub(super) fn keys(&self, range: Range<u64>) -> Result<Vec<(String, Key)>, RegisterError> {
        self.with_set(&range, |set, within| {
            let key = |device: &str| Ok((device.to_owned(), set.key_for(device, within.clone())?));
            set.devices().map(key).collect()
        })
        .unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Runs with the registration of the part that a range begins in, and the range as offsets into
    /// it.
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

/// Where the memory of a space is, by the number of the space.
static MEMORIES: AppendOnlyTable<MemoryEntry> =
    AppendOnlyTable::new([const { MemoryEntry::new() }; FIRST], MemoryEntry::new);

struct MemoryEntry {
    memory: AtomicPtr<PoolMemory>,
    /// Its first address, one load nearer.
    base: AtomicPtr<u8>,
}

impl MemoryEntry {
    const fn new() -> MemoryEntry {
        MemoryEntry { memory: AtomicPtr::new(ptr::null_mut()), base: AtomicPtr::new(ptr::null_mut()) }
    }
}

/// Says that the space of this number, which is the caller's and has no block yet, is of this
/// memory.
pub(super) fn place(space: u32, memory: &Arc<PoolMemory>) {
    let place = MEMORIES.get(space);
    // Release, both, pair with the Acquire in `of` and in `base_of`.
    place.base.store(memory.base().as_ptr(), Ordering::Release);
    place.memory.store(Arc::as_ptr(memory).cast_mut(), Ordering::Release);
}

/// The memory of a space.
///
/// # Safety
/// A block of that space exists for as long as the result is used.
pub(super) unsafe fn of<'a>(space: u32) -> &'a PoolMemory {
    // SAFETY: the pool called `place` for the space before there was a block, and the allocator's
    // metadata, which outlives the last block, keeps the memory. Acquire pairs with the Release in
    // `place`.
    unsafe { &*MEMORIES.get(space).memory.load(Ordering::Acquire) }
}

/// The first address of the memory of a space.
///
/// # Safety
/// As for [`of`].
#[inline(always)]
pub(super) unsafe fn base_of(space: u32) -> NonNull<u8> {
    // Acquire pairs with the Release in `place`.
    let base = MEMORIES.get(space).base.load(Ordering::Acquire);
    // SAFETY: there is a block, so `place` was called.
    unsafe { NonNull::new_unchecked(base) }
}

//! *Memory*: the bytes of a pool, cut into parts that are registered each by itself.
//!
//! ```text
//!  Pool ──┬──▶ books of offsets ──keep──▶ Memory ──▶ part 0: region, registration
//!  Pool ──┘        ▲                         ▲       part 1: region, registration
//!  Block ──────────┘ (by number)             │       …
//!     └──────────────────────────────────────┘ (by number)
//! ```
//!
//! A block has to be good after its pool is gone, and must not pay for it: a counted reference in each would be two atomic
//! read-modify-writes on a line that all threads share. But the books of offsets know anyway whether anything is allocated. So they keep
//! the memory, and drop it when the last pool *and* the last block are gone. A block names its books by a number (see the offset
//! layer's registry); a table by the same number leads to the memory.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::arena::Region;
use crate::register::RegistrationSet;
use crate::sync::{FIRST, Stable};

/// The bytes of a pool.
#[derive(Debug)]
pub(super) struct Memory {
    /// The first address.
    base: NonNull<u8>,
    /// In order, without gaps.
    parts: Box<[Part]>,
    /// Bytes of each part but the last, which may be shorter.
    part_bytes: usize,
}

// SAFETY: an address, and what may be sent.
unsafe impl Send for Memory {}
// SAFETY: as above; what changes is behind locks.
unsafe impl Sync for Memory {}

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

impl Memory {
    /// A region as parts of `part_bytes` bytes each.
    pub(super) fn new(region: Region, part_bytes: usize) -> Result<Memory, crate::arena::ArenaError> {
        let base = region.base();
        let part = |region| Part { region: Arc::new(region), set: RwLock::new(None) };
        let parts = region.split(part_bytes)?.into_iter().map(part).collect();
        Ok(Memory { base, parts, part_bytes })
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
}

/// Where the memory of a space is, by the number of the space.
static MEMORIES: Stable<Place> = Stable::new([const { Place::new(ptr::null_mut()) }; FIRST], Place::default);

type Place = AtomicPtr<Memory>;

/// Says that the space of this number, which is the caller's and has no block yet, is of this memory.
pub(super) fn place(space: u32, memory: &Arc<Memory>) {
    // Release pairs with the Acquire in `of`.
    MEMORIES.get(space).store(Arc::as_ptr(memory).cast_mut(), Ordering::Release);
}

/// The memory of a space.
///
/// # Safety
/// A block of that space exists for as long as the result is used.
pub(super) unsafe fn of<'a>(space: u32) -> &'a Memory {
    // SAFETY: whoever made the space a pool's has called `place` before there was a block, and the books, which go after the last
    // block, keep the memory. Acquire pairs with the Release in `place`.
    unsafe { &*MEMORIES.get(space).load(Ordering::Acquire) }
}

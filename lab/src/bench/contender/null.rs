//! The lower bound: the cost of the loop and of a handle when nothing is placed.
//!
//! `null` counts live bytes and fails requests beyond the capacity. A loop therefore takes the same
//! steps as with a real allocator: the failing call, the eviction, the call that succeeds. `null`
//! has no lock and no atomic read-modify-write, and its handle has the size of the library's. The
//! offsets that it returns mean nothing. It never fails before the space is full, so its
//! utilization is also that of an allocator that could move objects.
//!
//! The counters are in a static table, because a handle of 20 bytes has no space for a pointer.
//! Handles must not outlive their allocator, and one allocator must be used by one thread;
//! otherwise only the counts are wrong.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};

use super::{Contender, RangeHandle, Space};

/// The number of `null` allocators that can exist at once.
const SLOTS: usize = 64;

static LIVE_BYTES: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];
/// Slots in use, one bit each.
static USED_SLOTS: Mutex<u64> = Mutex::new(0);

/// The allocator that places nothing.
pub struct Null {
    slot: u32,
    capacity: u64,
}

/// A counted range: 20 bytes.
pub struct NullHandle {
    /// Low and high halves, which align the handle to four bytes.
    _offset: [u32; 2],
    size: [u32; 2],
    slot: u32,
}

const _: () = assert!(size_of::<NullHandle>() == 20);

#[inline]
fn split(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

impl RangeHandle for NullHandle {
    #[inline]
    fn size(&self) -> u64 {
        u64::from(self.size[0]) | u64::from(self.size[1]) << 32
    }
}

impl Drop for NullHandle {
    #[inline]
    fn drop(&mut self) {
        let live = &LIVE_BYTES[self.slot as usize % SLOTS];
        live.store(live.load(Relaxed).wrapping_sub(self.size()), Relaxed);
    }
}

impl Contender for Null {
    type Handle = NullHandle;

    fn create(space: Space) -> Result<Self> {
        let mut used = USED_SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = used.trailing_ones();
        ensure!((slot as usize) < SLOTS, "at most {SLOTS} exist at once");
        *used |= 1 << slot;
        LIVE_BYTES[slot as usize].store(0, Relaxed);
        Ok(Self { slot, capacity: space.capacity })
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<NullHandle> {
        let live = &LIVE_BYTES[self.slot as usize % SLOTS];
        let before = live.load(Relaxed);
        let after = before.checked_add(size)?;
        if size == 0 || after > self.capacity {
            return None;
        }
        live.store(after, Relaxed);
        Some(NullHandle { _offset: split(before), size: split(size), slot: self.slot })
    }
}

impl Drop for Null {
    fn drop(&mut self) {
        *USED_SLOTS.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.slot);
    }
}

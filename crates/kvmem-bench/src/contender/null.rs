//! The floor: what the loop and a handle cost when nothing is placed.
//!
//! `null` counts live bytes and refuses what would pass the capacity, so that a loop takes the
//! turns it takes with a real allocator: the failing call, the eviction, the call that succeeds. It
//! has no lock and no atomic read-modify-write, and its handle has the size of the library's. The
//! offsets that it gives mean nothing. Since it never fails before the space is full, its
//! utilization is also that of an allocator that could move objects.
//!
//! The counter lies in a table of fixed places, for a handle of twenty bytes has no room for a
//! pointer. Handles must not outlive their allocator, and one allocator must be used from one
//! thread: counts would be wrong, nothing worse.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::{Contender, ContenderId, CreateError, Held, Space};

/// How many `null` allocators can exist at once.
const PLACES: usize = 64;

static LIVE_BYTES: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
/// Places in use, one bit each.
static TAKEN: Mutex<u64> = Mutex::new(0);

/// The allocator that places nothing.
pub struct Null {
    place: u32,
    capacity: u64,
}

/// A counted range: 20 bytes.
pub struct Handle {
    /// Low and high halves, so that the handle is aligned to four bytes.
    offset: [u32; 2],
    size: [u32; 2],
    place: u32,
}

const _: () = assert!(size_of::<Handle>() == 20);

#[inline]
fn split(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

#[inline]
fn join([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Held for Handle {
    #[inline]
    fn offset(&self) -> u64 {
        join(self.offset)
    }

    #[inline]
    fn size(&self) -> u64 {
        join(self.size)
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        let live = &LIVE_BYTES[self.place as usize % PLACES];
        live.store(live.load(Relaxed).wrapping_sub(self.size()), Relaxed);
    }
}

impl Contender for Null {
    const ID: ContenderId = ContenderId::Null;
    type Handle = Handle;

    fn create(space: Space) -> Result<Self, CreateError> {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let place = taken.trailing_ones();
        if place as usize >= PLACES {
            let reason = format!("more than {PLACES} at once");
            return Err(CreateError { contender: Self::ID, capacity: space.capacity, reason });
        }
        *taken |= 1 << place;
        LIVE_BYTES[place as usize].store(0, Relaxed);
        Ok(Self { place, capacity: space.capacity })
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<Handle> {
        let live = &LIVE_BYTES[self.place as usize % PLACES];
        let before = live.load(Relaxed);
        let after = before.checked_add(size)?;
        if size == 0 || after > self.capacity {
            return None;
        }
        live.store(after, Relaxed);
        Some(Handle { offset: split(before), size: split(size), place: self.place })
    }
}

impl Drop for Null {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.place);
    }
}

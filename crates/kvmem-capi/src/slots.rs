//! *Slots*: the places of objects, and which of them are free.
//!
//! Free slots form a stack. Each free slot stores the next one. One word stores the top and the
//! number of changes, so a delayed thread cannot mistake an old top for the current one. There is
//! no lock: a program may fork while another thread makes or destroys objects, and the child's
//! table is consistent, except that the slot of that thread may be lost.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use kvmem::{AppendOnlyTable, FIRST};

use crate::handle::SLOT_BITS;

/// In the word of the free slots: no free slot.
const NONE: u32 = 1 << SLOT_BITS;
/// One change, in the word of the free slots: the bits above the top count changes.
const CHANGE: u64 = 2 << SLOT_BITS;

/// The place of one object.
pub(crate) struct Slot<V> {
    /// The handle of this slot's object, with the flags; 0: no object.
    pub(crate) word: AtomicU64,
    /// Initialized if `word` is not 0.
    pub(crate) value: UnsafeCell<MaybeUninit<V>>,
    /// The last handle of this slot. Written by the thread that took the slot from the free ones.
    pub(crate) last: AtomicU64,
    /// The object's [`ForkScope`](crate::fork::ForkScope), as a word. Written by the thread that
    /// took the slot.
    pub(crate) home: AtomicUsize,
    /// The next free slot, or [`NONE`], while this one is free.
    below: AtomicU32,
}

// SAFETY: a shared slot gives other threads `&V`, and moves `V` between threads; `V` is `Send` and
// `Sync`. A value is written by the thread that owns the slot, before the Release store of its
// handle to `word`, and moved out by the one thread that takes the handle from `word`. No write
// therefore overlaps another access.
unsafe impl<V: Send + Sync> Sync for Slot<V> {}

impl<V> Slot<V> {
    const fn new() -> Self {
        Slot {
            word: AtomicU64::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
            last: AtomicU64::new(0),
            home: AtomicUsize::new(0),
            below: AtomicU32::new(NONE),
        }
    }
}

/// The slots of one table.
pub(crate) struct Slots<V: 'static> {
    slots: AppendOnlyTable<Slot<V>>,
    /// The top of the free slots, or [`NONE`], and the number of changes.
    free: AtomicU64,
    /// The number of slots that were ever in use.
    used: AtomicU32,
}

impl<V: 'static> Slots<V> {
    pub(crate) const fn new() -> Self {
        Slots {
            slots: AppendOnlyTable::new([const { Slot::new() }; FIRST], Slot::new),
            free: AtomicU64::new(NONE as u64),
            used: AtomicU32::new(0),
        }
    }

    /// Returns a slot that was in use before.
    pub(crate) fn get(&self, index: u32) -> &Slot<V> {
        self.slots.get(index)
    }

    /// Returns a slot, if there is one of this index.
    #[inline(always)]
    pub(crate) fn find(&self, index: u32) -> Option<&Slot<V>> {
        self.slots.find(index)
    }

    /// Returns all slots that were ever in use.
    pub(crate) fn ever_used(&self) -> impl Iterator<Item = &Slot<V>> {
        // Relaxed: the caller is the only thread of its process.
        let used = self.used.load(Ordering::Relaxed);
        (0..used).filter_map(|index| self.slots.find(index))
    }

    /// Takes a free slot, which then belongs to the calling thread; `None` if there is none.
    pub(crate) fn acquire(&self) -> Option<u32> {
        self.pop().or_else(|| self.fresh())
    }

    /// Takes a slot that was never in use.
    fn fresh(&self) -> Option<u32> {
        let next = |used: u32| (used < NONE).then_some(used + 1);
        // Relaxed: no thread has written to the slot.
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    /// Takes a slot that was returned.
    fn pop(&self) -> Option<u32> {
        // Acquire, here and below, pairs with the Release in `release`: all earlier use of the slot
        // is complete, and its `below` is visible.
        let mut free = self.free.load(Ordering::Acquire);
        loop {
            let index = top(free);
            if index == NONE {
                return None;
            }
            // Relaxed: if another thread takes the slot and writes here, `free` has changed.
            let below = self.slots.get(index).below.load(Ordering::Relaxed);
            match self.free.compare_exchange_weak(
                free,
                changed(free, below),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(index),
                Err(now) => free = now,
            }
        }
    }

    /// Returns a slot.
    pub(crate) fn release(&self, index: u32) {
        let slot = self.slots.get(index);
        // Relaxed: only compared below.
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            // Relaxed: the Release below publishes it.
            slot.below.store(top(free), Ordering::Relaxed);
            // Release pairs with the Acquire in `pop`. Relaxed on failure: the value is only
            // compared again.
            match self.free.compare_exchange_weak(
                free,
                changed(free, index),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }
}

/// Returns the top slot in the word of the free slots.
fn top(free: u64) -> u32 {
    (free & (CHANGE - 1)) as u32
}

/// Returns the word after `free`, with another slot at the top.
fn changed(free: u64, top: u32) -> u64 {
    (free & !(CHANGE - 1)).wrapping_add(CHANGE) | u64::from(top)
}

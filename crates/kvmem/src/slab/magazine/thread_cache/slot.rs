//! *Slot*: the places of the two magazines that a thread has of a class, loaded and previous.
//!
//! The counts of rounds are atomic only because statistics read them from other threads. Everything
//! else is reached through [`ClassAccess`], a proof that the calling thread holds the owner's lock.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::super::magazine::{Magazine, MagazineHead};
use crate::sync::{AtomicU32, Ordering};

/// The two magazines of a class.
pub(crate) struct ClassSlot<R> {
    loaded: MagazineSlot<R>,
    previous: MagazineSlot<R>,
}

/// A place for a magazine. If it is empty, `head` is null, and count and capacity are 0.
struct MagazineSlot<R> {
    head: Cell<*mut MagazineHead>,
    /// At most `capacity`; all places below it hold rounds.
    count: AtomicU32,
    capacity: Cell<u32>,
    rounds: PhantomData<R>,
}

/// Exclusive access to the magazines of a class. It can be copied, but it does not leave its
/// thread: the cells of the slot are not `Sync`.
pub(crate) struct ClassAccess<'a, R> {
    pub(crate) loaded: MagazineAccess<'a, R>,
    pub(crate) previous: MagazineAccess<'a, R>,
}

/// Exclusive access to one of them.
pub(crate) struct MagazineAccess<'a, R>(&'a MagazineSlot<R>);

impl<R: Copy> ClassSlot<R> {
    pub(crate) fn new() -> Self {
        ClassSlot { loaded: MagazineSlot::new(), previous: MagazineSlot::new() }
    }

    /// Returns the number of rounds in both magazines. Callable from any thread.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.loaded.count() + self.previous.count()
    }

    /// Returns the access to the magazines.
    ///
    /// # Safety
    ///
    /// While the result is used, no other thread has an access to this slot.
    #[inline(always)]
    pub(crate) unsafe fn access(&self) -> ClassAccess<'_, R> {
        ClassAccess {
            loaded: MagazineAccess(&self.loaded),
            previous: MagazineAccess(&self.previous),
        }
    }
}

impl<R: Copy> MagazineSlot<R> {
    fn new() -> Self {
        MagazineSlot {
            head: Cell::new(ptr::null_mut()),
            count: AtomicU32::new(0),
            capacity: Cell::new(0),
            rounds: PhantomData,
        }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        // Relaxed, here and below: ordered by the owner's lock; the statistics need no order.
        self.count.load(Ordering::Relaxed) as usize
    }
}

impl<R: Copy> ClassAccess<'_, R> {
    /// Exchanges the loaded and the previous magazine.
    pub(crate) fn swap(&self) {
        let (loaded, previous) = (self.loaded.take(), self.previous.take());
        self.loaded.set(previous);
        self.previous.set(loaded);
    }
}

impl<R: Copy> MagazineAccess<'_, R> {
    /// Takes the round that was put last.
    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<R> {
        let count = self.0.count.load(Ordering::Relaxed).checked_sub(1)?;
        // SAFETY: all places below the count hold rounds, and no other thread has access to the
        // slot, so the magazine stays and its places are not written meanwhile.
        let round = unsafe { Magazine::<R>::rounds(self.0.head.get()).add(count as usize).read() };
        self.0.count.store(count, Ordering::Relaxed);
        Some(round)
    }

    /// Puts a round, if there is room.
    #[inline(always)]
    pub(crate) fn push(&self, round: R) -> bool {
        let count = self.0.count.load(Ordering::Relaxed);
        if count >= self.0.capacity.get() {
            return false;
        }
        // SAFETY: the place is below the capacity, so it is part of the magazine's block; no other
        // thread has access to the slot.
        unsafe { Magazine::<R>::rounds(self.0.head.get()).add(count as usize).write(round) };
        self.0.count.store(count + 1, Ordering::Relaxed);
        true
    }

    /// Moves up to `want` rounds to the end of `out`, which has room for them; returns how many.
    pub(crate) fn pop_many(&self, want: usize, out: &mut Vec<R>) -> usize {
        let count = self.count();
        let some = want.min(count);
        if some > 0 {
            let first = Magazine::<R>::rounds(self.0.head.get()).wrapping_add(count - some);
            // SAFETY: all places below the count hold rounds, and no other thread has access to the
            // slot while they are copied.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(first, some) });
            self.0.count.store((count - some) as u32, Ordering::Relaxed);
        }
        some
    }

    /// Appends a copy of the rounds to `out`.
    pub(crate) fn copy_into(&self, out: &mut Vec<R>) {
        if self.count() > 0 {
            let first = Magazine::<R>::rounds(self.0.head.get());
            // SAFETY: as in `pop_many`.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(first, self.count()) });
        }
    }

    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.0.count()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity.get() as usize
    }

    pub(crate) fn has_room(&self) -> bool {
        self.count() < self.capacity()
    }

    /// Takes the magazine out, if there is one.
    pub(crate) fn take(&self) -> Option<Magazine<R>> {
        let head = NonNull::new(self.0.head.replace(ptr::null_mut()))?;
        let count = self.0.count.load(Ordering::Relaxed);
        self.0.count.store(0, Ordering::Relaxed);
        self.0.capacity.set(0);
        // SAFETY: `set` stored the magazine and gave up its ownership; the slot has just forgotten
        // it. All places below the count hold rounds.
        Some(unsafe { Magazine::from_raw(head, count) })
    }

    /// Stores a magazine. The slot must be empty.
    pub(crate) fn set(&self, magazine: Option<Magazine<R>>) {
        debug_assert!(self.0.head.get().is_null());
        if let Some(magazine) = magazine {
            self.0.count.store(magazine.count() as u32, Ordering::Relaxed);
            self.0.capacity.set(magazine.capacity() as u32);
            self.0.head.set(magazine.into_raw().as_ptr());
        }
    }
}

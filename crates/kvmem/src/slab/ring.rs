//! *Ring*: the slabs of one class, those with free objects before those without.
//!
//! ```text
//!   head ─▶ some free ─▶ some free ─▶ … ─▶ full ─▶ full ─┐
//!     └──────────────────────────────────────────────────┘
//! ```
//!
//! Partly sorted, as in seed and paper: that is all the order there is, and each operation keeps it
//! in constant time. A slab that becomes full is the head; the head moves on by one, and so it is
//! the last. A slab that was full and gets an object back becomes the head: it has the fewest free
//! objects of all, and is filled first, so that the emptier ones can become empty. An empty slab
//! leaves the ring.

use std::ptr::{self, NonNull};

use super::class::Geometry;
use super::slab::{Chunk, Slab};

/// The slabs of one class. The slabs are the ring's alone: who has the ring, has their headers.
pub(crate) struct SlabRing {
    head: *mut Slab,
    pub(crate) slabs: usize,
    /// Objects that are not free.
    pub(crate) live: usize,
    /// Slabs ever laid: counts the colours through.
    pub(crate) created: usize,
}

// SAFETY: the headers belong to the ring, wherever it is.
unsafe impl Send for SlabRing {}

/// What became of an object that was given back.
pub(crate) enum GiveOutcome {
    Kept,
    /// Its slab is empty now, and out of the ring.
    Emptied,
    /// It was free already.
    WasFree,
}

impl SlabRing {
    pub(crate) const fn new() -> SlabRing {
        SlabRing { head: ptr::null_mut(), slabs: 0, live: 0, created: 0 }
    }

    /// Takes up to `want` objects from the slabs that are there; O(objects + slabs that become
    /// full).
    pub(crate) fn take(
        &mut self,
        geometry: &Geometry,
        want: usize,
        mut out: impl FnMut(Chunk),
    ) -> usize {
        let mut taken = 0;
        while taken < want
            && let Some(head) = NonNull::new(self.head)
        {
            // SAFETY: a slab of the ring, of the ring's geometry.
            let some =
                unsafe { Slab::take(head, geometry, want - taken, |chunk| out(Chunk(chunk))) };
            if some == 0 {
                // The head is full: so are all.
                break;
            }
            taken += some;
            // SAFETY: as above.
            let header = unsafe { head.as_ref() };
            if usize::from(header.live) == geometry.objects {
                self.head = header.next;
            }
        }
        self.live += taken;
        taken
    }

    /// Adds a slab of which all objects are free.
    ///
    /// # Safety
    /// It is a slab of the ring's geometry that nobody else has.
    pub(crate) unsafe fn add(&mut self, slab: NonNull<Slab>) {
        // SAFETY: the caller's promise.
        unsafe { self.link(slab) };
        self.slabs += 1;
        self.created += 1;
    }

    /// Gives an object of a slab of the ring back.
    ///
    /// # Safety
    /// `slab` is a slab of this ring.
    pub(crate) unsafe fn give(
        &mut self,
        mut slab: NonNull<Slab>,
        index: usize,
        geometry: &Geometry,
    ) -> GiveOutcome {
        // SAFETY: a slab of the ring.
        let header = unsafe { slab.as_mut() };
        let was_full = usize::from(header.live) == geometry.objects;
        if !header.give(index) {
            return GiveOutcome::WasFree;
        }
        self.live -= 1;
        if header.live == 0 {
            // SAFETY: a slab of the ring.
            unsafe { self.unlink(slab) };
            self.slabs -= 1;
            return GiveOutcome::Emptied;
        }
        if was_full && self.head != slab.as_ptr() {
            // SAFETY: a slab of the ring; between the two it is in none.
            unsafe {
                self.unlink(slab);
                self.link(slab);
            }
        }
        GiveOutcome::Kept
    }

    /// Puts a slab before the head, and makes it the head.
    ///
    /// # Safety
    /// It is in no ring, and nobody else has it.
    unsafe fn link(&mut self, slab: NonNull<Slab>) {
        let at = slab.as_ptr();
        // SAFETY: the slab is the caller's, the others are of the ring; all are reached by pointer,
        // one at a time.
        unsafe {
            if self.head.is_null() {
                ((*at).next, (*at).prev) = (at, at);
            } else {
                let (next, prev) = (self.head, (*self.head).prev);
                ((*at).next, (*at).prev) = (next, prev);
                (*prev).next = at;
                (*next).prev = at;
            }
        }
        self.head = at;
    }

    /// Takes a slab out.
    ///
    /// # Safety
    /// It is in this ring.
    unsafe fn unlink(&mut self, slab: NonNull<Slab>) {
        let at = slab.as_ptr();
        // SAFETY: all three are slabs of the ring, reached by pointer, one at a time.
        unsafe {
            let (next, prev) = ((*at).next, (*at).prev);
            (*prev).next = next;
            (*next).prev = prev;
            if self.head == at {
                self.head = if next == at { ptr::null_mut() } else { next };
            }
        }
    }

    /// Walks the ring and says what is wrong with it.
    #[cfg(test)]
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<(), String> {
        let (mut at, mut slabs, mut live, mut full_seen) = (self.head, 0, 0, false);
        while !at.is_null() {
            // SAFETY: a slab of the ring.
            let header = unsafe { &*at };
            let full = usize::from(header.live) == geometry.objects;
            if full_seen && !full {
                return Err(format!("slab {slabs} has free objects and stands after a full one"));
            }
            full_seen |= full;
            // SAFETY: as above.
            if unsafe { (*header.next).prev } != at {
                return Err(format!("slab {slabs} is not the one before the next"));
            }
            if header.live == 0 {
                return Err(format!("slab {slabs} is empty"));
            }
            slabs += 1;
            live += usize::from(header.live);
            at = if header.next == self.head { ptr::null_mut() } else { header.next };
        }
        if (slabs, live) != (self.slabs, self.live) {
            return Err(format!(
                "{slabs} slabs with {live} objects, counted {} with {}",
                self.slabs, self.live
            ));
        }
        Ok(())
    }
}

//! *Ring*: the slabs of one class, those with free objects before those without.
//!
//! ```text
//!   head ─▶ some free ─▶ some free ─▶ … ─▶ full ─▶ full ─┐
//!     └──────────────────────────────────────────────────┘
//! ```
//!
//! The ring is only partly sorted, as in GSlice and in Bonwick's paper: slabs with free objects
//! stand before full slabs, and each operation keeps that order in constant time. A slab that
//! becomes full is the head; the head then moves on by one, which makes the full slab the last one.
//! A full slab that gets an object back becomes the head: it has the fewest free objects of all, so
//! it is filled first and the emptier slabs can become empty. An empty slab leaves the ring.

use std::ptr::{self, NonNull};

use super::geometry::Geometry;
use super::slab::{Chunk, Slab};

/// The slabs of one class. The ring owns their headers.
pub(crate) struct SlabRing {
    head: *mut Slab,
    pub(crate) slabs: usize,
    /// Objects that are not free.
    pub(crate) live: usize,
    /// Slabs ever added to the ring; selects the colour of the next one.
    pub(crate) created: usize,
}

// SAFETY: the ring owns the headers, and moving the ring moves their ownership.
unsafe impl Send for SlabRing {}

/// The result of giving an object back.
pub(crate) enum GiveOutcome {
    Kept,
    /// The object's slab is empty and has left the ring.
    Emptied,
    /// The object was free already.
    WasFree,
}

impl SlabRing {
    pub(crate) const fn new() -> SlabRing {
        SlabRing { head: ptr::null_mut(), slabs: 0, live: 0, created: 0 }
    }

    /// Takes up to `want` objects from the slabs of the ring. O(objects + slabs that become full).
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
            // SAFETY: a slab of the ring, of the ring's geometry. `&mut self` excludes other users
            // of its header.
            let some = unsafe { Slab::take(head, geometry, want - taken, &mut out) };
            if some == 0 {
                // The head is full, so all slabs are.
                break;
            }
            taken += some;
            // SAFETY: a slab of the ring; `&mut self` excludes writers of its header.
            let header = unsafe { head.as_ref() };
            if usize::from(header.live) == geometry.objects {
                self.head = header.next;
            }
        }
        self.live += taken;
        taken
    }

    /// Adds a slab whose objects are all free.
    ///
    /// # Safety
    ///
    /// The slab has the ring's geometry, and only the caller uses it.
    pub(crate) unsafe fn add(&mut self, slab: NonNull<Slab>) {
        // SAFETY: the caller promises that only it uses the slab, so the slab is in no ring.
        unsafe { self.link(slab) };
        self.slabs += 1;
        self.created += 1;
    }

    /// Gives an object back to its slab.
    ///
    /// # Safety
    ///
    /// `slab` belongs to this ring.
    pub(crate) unsafe fn give(
        &mut self,
        mut slab: NonNull<Slab>,
        index: usize,
        geometry: &Geometry,
    ) -> GiveOutcome {
        // SAFETY: the caller promises that the slab is one of this ring; `&mut self` excludes other
        // users of its header. The reference is not used after another pointer to the header is.
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
            // SAFETY: a slab of the ring; between the two calls it is in no ring.
            unsafe {
                self.unlink(slab);
                self.link(slab);
            }
        }
        GiveOutcome::Kept
    }

    /// Inserts a slab in front of the head and makes it the head.
    ///
    /// # Safety
    ///
    /// The slab is in no ring, and only the caller uses it.
    unsafe fn link(&mut self, slab: NonNull<Slab>) {
        let at = slab.as_ptr();
        // SAFETY: the caller promises that the slab is its own, and the others belong to the ring,
        // so all headers are initialized and have no other user. They are accessed by pointer, so
        // it does not matter if two of them are the same.
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

    /// Removes a slab.
    ///
    /// # Safety
    ///
    /// The slab is in this ring.
    unsafe fn unlink(&mut self, slab: NonNull<Slab>) {
        let at = slab.as_ptr();
        // SAFETY: the caller promises that the slab is in this ring, so its neighbours are, too.
        // All are accessed by pointer, so it does not matter if two of them are the same.
        unsafe {
            let (next, prev) = ((*at).next, (*at).prev);
            (*prev).next = next;
            (*next).prev = prev;
            if self.head == at {
                self.head = if next == at { ptr::null_mut() } else { next };
            }
        }
    }

    /// Walks the ring and describes the first violation of its invariants.
    #[cfg(all(test, not(loom)))]
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
            // SAFETY: the next of a slab of the ring is a slab of the ring.
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

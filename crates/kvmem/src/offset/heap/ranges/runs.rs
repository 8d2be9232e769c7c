//! *Runs*: the wholly free segments of a space with a boundary.
//!
//! They are not in the bins. Adjacent ones form a *run*: one hole that begins at a boundary, ends
//! at one or at the end of the space, and is held back. The run at the end of the space is the
//! *wilderness*; the other runs are in a list.

use super::super::bins::{Bins, Hole, RUN};
use super::super::chunked_table::NIL;

/// Value of [`Runs::boundary`] without a boundary.
pub(crate) const NO_BOUNDARY: u64 = u64::MAX;

/// The boundary, and the runs between its multiples.
pub(crate) struct Runs {
    /// No used range crosses a multiple of it, and no two free ranges coalesce across one.
    pub(super) boundary: u64,
    /// The run of free segments at the end of a space with a boundary, or `NIL`.
    pub(super) wilderness: u32,
    /// The run listed last, or `NIL`.
    first: u32,
}

impl Runs {
    pub(super) fn new(boundary: Option<u64>) -> Self {
        Runs { boundary: boundary.unwrap_or(NO_BOUNDARY), wilderness: NIL, first: NIL }
    }

    /// Returns whether free ranges stay apart at `offset`.
    #[inline]
    pub(super) fn is_edge(&self, offset: u64) -> bool {
        self.boundary != NO_BOUNDARY && self.is_at_boundary(offset)
    }

    #[cold]
    fn is_at_boundary(&self, offset: u64) -> bool {
        offset.is_multiple_of(self.boundary)
    }

    /// Returns the run listed last, or `NIL`.
    #[inline]
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// Returns the listed runs, the last listed first.
    pub(super) fn listed(&self, bins: &Bins) -> impl Iterator<Item = u32> {
        bins.lists().listed_from(self.first)
    }

    /// Returns the wilderness, if there is one.
    pub(super) fn wilderness(&self) -> Option<u32> {
        Some(self.wilderness).filter(|&wilderness| wilderness != NIL)
    }

    /// Returns whether the hole is a run.
    pub(super) fn contain(&self, bins: &Bins, id: u32) -> bool {
        id == self.wilderness || bins[id].is_run()
    }

    /// Puts a hole that is held back first into the list.
    pub(super) fn list(&mut self, bins: &mut Bins, id: u32) {
        let next = std::mem::replace(&mut self.first, id);
        let hole = &mut bins[id];
        (hole.list_id, hole.prev, hole.next) = (RUN, NIL, next);
        if next != NIL {
            bins[next].prev = id;
        }
    }

    /// Removes a hole from the list, if it is in there; it stays held back.
    pub(super) fn unlist(&mut self, bins: &mut Bins, id: u32) {
        let Hole { list_id, prev, next, .. } = bins[id];
        if list_id != RUN {
            return;
        }
        match prev {
            NIL => self.first = next,
            _ => bins[prev].next = next,
        }
        if next != NIL {
            bins[next].prev = prev;
        }
        bins[id].hold_back();
    }

    /// Removes the run from the runs; it stays held back.
    pub(super) fn remove(&mut self, bins: &mut Bins, run: u32) {
        if run == self.wilderness {
            self.wilderness = NIL;
        } else {
            self.unlist(bins, run);
        }
    }

    /// Corrects the runs after the record of a hole has moved.
    pub(super) fn record_moved(&mut self, bins: &mut Bins, old: u32, new: u32) {
        if self.wilderness == old {
            self.wilderness = new;
        }
        let Hole { list_id, prev, next, .. } = bins[new];
        if list_id == RUN {
            match prev {
                NIL => self.first = new,
                _ => bins[prev].next = new,
            }
            if next != NIL {
                bins[next].prev = new;
            }
        }
    }
}

//! *Holes*: the records of the free ranges.
//!
//! Unlike a node, a record has no name outside of the books. So records can be moved: while they
//! take more than four times the room that they need, each free moves a few of them from the end of
//! the table into free slots before it.

use std::ops::{Index, IndexMut, Range};

use super::table::{ChunkedTable, MAX_SLOTS, NIL, TableSlot};

/// In [`Hole::list_id`]: the hole is on the books but held back from the bins.
const HELD_BACK: u32 = u32::MAX;
/// In [`Hole::list_id`]: held back, and in the list of runs.
pub(super) const RUN: u32 = HELD_BACK - 1;

/// The hole of whatever is not free: a record with size 0, so that the bytes free beside a range
/// can be had without asking first whether there are any.
pub(super) const NULL_HOLE: u32 = 0;

/// Records in the first block.
const FIRST: usize = 128;
/// Records that are moved for each free while there is far too much room for them.
const MOVES_PER_FREE: usize = 4;

/// A free range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole {
    pub(super) offset: u64,
    pub(super) size: u64,
    /// Its node in the chain of ranges.
    pub(super) node: u32,
    /// Neighbours in its list.
    pub(super) prev: u32,
    pub(super) next: u32,
    /// The list of the bins that it is in, or [`RUN`], or [`HELD_BACK`].
    pub(super) list_id: u32,
}

impl Hole {
    pub(super) fn new(offset: u64, size: u64, node: u32) -> Self {
        Hole { offset, size, node, prev: NIL, next: NIL, list_id: HELD_BACK }
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + self.size
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.end()
    }

    pub(super) fn is_binned(&self) -> bool {
        self.list_id < RUN
    }

    /// Whether it is in the list of runs.
    pub(super) fn is_run(&self) -> bool {
        self.list_id == RUN
    }

    /// It is in no list.
    pub(super) fn hold_back(&mut self) {
        self.list_id = HELD_BACK;
    }
}

impl TableSlot for Hole {
    const EMPTY: Self =
        Hole { offset: 0, size: 0, node: NIL, prev: NIL, next: NIL, list_id: HELD_BACK };
}

/// The records of all holes.
pub(super) struct Holes(ChunkedTable<Hole, FIRST>);

impl Holes {
    pub(super) fn new() -> Self {
        let mut table = ChunkedTable::new(MAX_SLOTS);
        let nothing = table.insert(Hole::EMPTY);
        debug_assert_eq!(nothing, NULL_HOLE);
        Holes(table)
    }

    #[inline]
    pub(super) fn insert(&mut self, hole: Hole) -> u32 {
        self.0.insert(hole)
    }

    #[inline]
    pub(super) fn remove(&mut self, id: u32) -> Hole {
        self.0.remove(id)
    }

    /// Holes on the books.
    #[inline]
    pub(super) fn live(&self) -> u32 {
        self.0.live() - 1
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Whether there is a record of that number, in use or not.
    pub(super) fn contains(&self, id: u32) -> bool {
        self.0.contains(id)
    }

    /// How many records should be moved down after so many frees.
    #[inline]
    pub(super) fn moves_due(&self, frees: usize) -> usize {
        let excess = u64::from(self.0.slots()) > 4 * u64::from(self.0.live()) + 1024;
        if excess { frees * MOVES_PER_FREE } else { 0 }
    }

    /// Moves one record down; returns its old number and its new one.
    pub(super) fn move_slot_down(&mut self) -> Option<(u32, u32)> {
        self.0.move_slot_down()
    }
}

impl Index<u32> for Holes {
    type Output = Hole;

    #[inline]
    fn index(&self, id: u32) -> &Hole {
        &self.0[id]
    }
}

impl IndexMut<u32> for Holes {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Hole {
        &mut self.0[id]
    }
}

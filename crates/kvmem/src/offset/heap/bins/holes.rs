//! *Holes*: the records of the free ranges.
//!
//! No handle contains the index of a record, unlike that of a node. Records can therefore move:
//! while they take more than four times the memory that they need, each free moves a few of them
//! from the end of the table into earlier free slots.

use std::ops::{Index, IndexMut, Range};

use super::super::chunked_table::{ChunkedTable, MAX_SLOTS, NIL, TableSlot};

/// Value of [`Hole::list_id`]: held back from the bins.
const HELD_BACK: u32 = u32::MAX;
/// Value of [`Hole::list_id`]: held back, and in the list of runs.
pub(crate) const RUN: u32 = HELD_BACK - 1;

/// The hole of every range that is not free: a record with size 0. The bytes free next to a range
/// can be read from it without testing first whether there are any. Its links are written in place
/// of those of a neighbour that a hole does not have in its list, and are never read.
pub(crate) const NULL_HOLE: u32 = 0;

/// Records that each free moves while the records take far more memory than they need.
const MOVES_PER_FREE: usize = 4;

/// A free range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hole {
    pub(crate) offset: u64,
    pub(crate) size: u64,
    /// Its node in the chain of ranges.
    pub(crate) node: u32,
    /// Neighbours in its list.
    pub(crate) prev: u32,
    pub(crate) next: u32,
    /// The list that contains it, or [`RUN`], or [`HELD_BACK`].
    pub(crate) list_id: u32,
}

impl Hole {
    pub(crate) fn new(offset: u64, size: u64, node: u32) -> Self {
        Hole { offset, size, node, prev: NIL, next: NIL, list_id: HELD_BACK }
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + self.size
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.end()
    }

    pub(crate) fn is_binned(&self) -> bool {
        self.list_id < RUN
    }

    /// Returns whether it is in the list of runs.
    pub(crate) fn is_run(&self) -> bool {
        self.list_id == RUN
    }

    /// Marks it as being in no list.
    pub(crate) fn hold_back(&mut self) {
        self.list_id = HELD_BACK;
    }
}

impl TableSlot for Hole {
    const EMPTY: Self =
        Hole { offset: 0, size: 0, node: NIL, prev: NIL, next: NIL, list_id: HELD_BACK };
}

/// The records of all holes.
pub(crate) struct Holes(ChunkedTable<Hole>);

impl Holes {
    pub(crate) fn new() -> Self {
        let mut table = ChunkedTable::new(MAX_SLOTS);
        let nothing = table.insert(Hole::EMPTY);
        debug_assert_eq!(nothing, NULL_HOLE);
        Holes(table)
    }

    #[inline]
    pub(crate) fn insert(&mut self, hole: Hole) -> u32 {
        self.0.insert(hole)
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: u32) -> Hole {
        self.0.remove(id)
    }

    /// Frees a record without reading it.
    #[inline(always)]
    pub(crate) fn free(&mut self, id: u32) {
        self.0.free(id);
    }

    /// Returns the number of holes.
    #[inline]
    pub(crate) fn live(&self) -> u32 {
        self.0.live() - 1
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Returns whether the record exists, in use or not.
    pub(crate) fn contains(&self, id: u32) -> bool {
        self.0.contains(id)
    }

    /// Returns how many records should move down after `frees` frees.
    #[inline]
    pub(crate) fn moves_due(&self, frees: usize) -> usize {
        let excess = u64::from(self.0.slots()) > 4 * u64::from(self.0.live()) + 1024;
        if excess { frees * MOVES_PER_FREE } else { 0 }
    }

    /// Moves one record down; returns its old and new index.
    pub(crate) fn move_slot_down(&mut self) -> Option<(u32, u32)> {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Records move as long as they take more than four times the memory that they need, and a
    /// little more.
    #[test]
    fn records_move_while_many_are_free() {
        let mut holes = Holes::new();
        let hole = |node| Hole::new(0, 1, node);
        let mut ids: Vec<u32> = (0..5000).map(|node| holes.insert(hole(node))).collect();
        let mut moves = 0;
        let mut random = 1u64;
        while ids.len() > 10 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            holes.free(ids.swap_remove((random >> 33) as usize % ids.len()));
            let excess = holes.0.slots() > 4 * (holes.live() + 1) + 1024;
            assert_eq!(holes.moves_due(1), if excess { 4 } else { 0 });
            for _ in 0..holes.moves_due(1) {
                let Some((old, new)) = holes.move_slot_down() else { continue };
                assert_eq!(ids.iter_mut().filter(|id| **id == old).map(|id| *id = new).count(), 1);
                moves += 1;
            }
        }
        assert!(moves > 100 && holes.0.slots() <= 4 * 11 + 1024, "{moves} moves");
        let mut nodes: Vec<u32> = ids.iter().map(|&id| holes[id].node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes.len(), 10, "each record is still there");
        assert_eq!(holes.moves_due(3) % 12, 0);
    }
}

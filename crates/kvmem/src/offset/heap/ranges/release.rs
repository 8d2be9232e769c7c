//! *Release*: a used range becomes free, and is coalesced with its free neighbours.
//!
//! These are Knuth's boundary tags, stored next to the space instead of in it.

use super::super::bins::Hole;
use super::chain::RangeNode;
use super::range_table::RangeTable;

impl RangeTable {
    /// Turns the linked range `node`, `[offset, offset + size)`, into a hole and coalesces it with
    /// its free neighbours. The range is not counted as used any more.
    #[inline]
    pub(crate) fn release(&mut self, node: u32, offset: u64, size: u64) {
        let RangeNode { prev, next, .. } = self.chain[node];
        let left = self.coalescible_hole(prev, offset);
        let right = self.coalescible_hole(next, offset + size);
        let joined = match (left, right) {
            (None, None) => {
                let id = self.bins.insert(Hole::new(offset, size, node));
                self.chain.set_free(node, id);
                id
            }
            (Some(left), None) => {
                self.chain.remove_between(prev, node, next);
                let Hole { offset, size: before, .. } = self.bins[left];
                self.bins.grow(left, offset, before + size);
                left
            }
            (None, Some(right)) => {
                self.chain.remove_between(prev, node, next);
                let before = self.bins[right].size;
                self.bins.grow(right, offset, size + before);
                right
            }
            (Some(left), Some(right)) => {
                self.chain.remove_two(prev, node, next);
                let after = self.bins[right];
                self.bins.remove_uncounted(right, after);
                let Hole { offset, size: before, .. } = self.bins[left];
                self.bins.grow(left, offset, before + size + after.size);
                left
            }
        };
        if self.has_boundary() {
            self.add_to_runs(joined);
        }
    }

    /// Returns the hole of the neighbour `node` if a range freed on the other side of `seam`
    /// coalesces with it.
    #[inline(always)]
    fn coalescible_hole(&self, node: u32, seam: u64) -> Option<u32> {
        let id = self.chain[node].hole()?;
        (!self.is_edge(seam) && self.bins[id].is_binned()).then_some(id)
    }
}

//! *Parts*: used ranges that become shorter, longer, or several, in place.

use super::chain::SENTINEL;
use super::placed::Placed;
use super::range_table::RangeTable;

impl RangeTable {
    /// Frees the tail of a used range: it is `new_size` bytes afterwards, `0 < new_size < size`.
    pub(crate) fn cut_tail(&mut self, placed: Placed, size: u64, new_size: u64) {
        let cut = placed.offset + new_size;
        let tail = self.chain.insert_after(placed.node, cut);
        self.allocated -= size - new_size;
        self.release(tail, cut, size - new_size);
    }

    /// Divides a used range at `cut`; returns the part behind.
    pub(crate) fn divide(&mut self, placed: Placed, cut: u64) -> Placed {
        self.live += 1;
        Placed { node: self.chain.insert_after(placed.node, cut), offset: cut }
    }

    /// Lengthens a used range into the free range behind it: it is `new_size ≥ size` bytes
    /// afterwards. On failure returns the greatest size that it could have. O(1).
    pub(crate) fn extend(&mut self, placed: Placed, size: u64, new_size: u64) -> Result<(), u64> {
        let end = placed.offset + size;
        let more = new_size - size;
        let free = self.free_behind(placed, end);
        if free < more {
            return Err(size + free);
        }
        if self.coalesced_region().is_some_and(|joined| joined.start == end) {
            self.close_region();
        }
        let next = self.chain[placed.node].next;
        if more > 0
            && let Some(id) = self.chain[next].hole()
        {
            if free == more {
                self.bins.remove(id);
                self.chain.remove(next);
            } else {
                let size = self.bins[id].size - more;
                self.bins.shrink(id, end + more, size);
            }
            self.allocated += more;
        }
        Ok(())
    }

    /// Returns the free bytes behind a used range that it could take in, including those of the
    /// small-object region.
    fn free_behind(&self, placed: Placed, end: u64) -> u64 {
        if self.is_edge(end) {
            return 0;
        }
        match (self.chain[self.chain[placed.node].next].hole(), self.coalesced_region()) {
            (Some(_), Some(joined)) if joined.start == end => joined.end - end,
            (Some(id), _) => self.bins[id].size,
            (None, _) => 0,
        }
    }

    /// Frees used ranges, each listed once. Ranges that follow each other in the list and in the
    /// space are coalesced before they reach a bin. O(ranges).
    pub(crate) fn free_batch(&mut self, batch: &[Placed]) {
        let mut rest = batch;
        while let Some((&first, mut tail)) = rest.split_first() {
            while let Some((&Placed { node, offset }, after)) = tail.split_first()
                && node == self.chain[first.node].next
                && !self.is_edge(offset)
            {
                self.chain.remove(node);
                self.live -= 1;
                tail = after;
            }
            let size = self.range_of(first.node).end - first.offset;
            self.count_freed(size);
            self.release(first.node, first.offset, size);
            rest = tail;
        }
    }

    /// Returns whether a node is that of a used range.
    pub(crate) fn is_used(&self, node: u32) -> bool {
        node != SENTINEL && self.chain.contains(node) && self.chain[node].hole().is_none()
    }
}

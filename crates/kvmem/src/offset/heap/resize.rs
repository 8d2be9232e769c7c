//! Changing a range in place, and freeing parts of ranges and batches of ranges.

use std::ops::Range;

use super::heap::{Heap, Placed};

impl Heap {
    /// Frees the tail of a used range: it is `new_size` bytes afterwards, `0 < new_size ≤ size`.
    /// Returns `None` if no node is left. O(1).
    pub(crate) fn shrink(&mut self, placed: Placed, size: u64, new_size: u64) -> Option<()> {
        if new_size == size {
            return Some(());
        }
        self.has_free_nodes().then(|| self.cut_tail(placed, size, new_size))
    }

    fn cut_tail(&mut self, placed: Placed, size: u64, new_size: u64) {
        self.coalesce();
        let cut = placed.offset + new_size;
        let tail = self.link_used_after(placed.node, cut);
        self.allocated -= size - new_size;
        self.fresh = false;
        self.release(tail, cut, size - new_size);
    }

    /// Lengthens a used range into the free range behind it: it is `new_size ≥ size` bytes
    /// afterwards. On failure returns the greatest size that it could have. O(1).
    pub(crate) fn extend(&mut self, placed: Placed, size: u64, new_size: u64) -> Result<(), u64> {
        self.coalesce();
        let end = placed.offset + size;
        let more = new_size - size;
        let room = self.room_behind(placed, end);
        if room < more {
            return Err(size + room);
        }
        if self.coalesced_region().is_some_and(|joined| joined.start == end) {
            self.close_region();
        }
        let next = self.nodes[placed.node].next;
        if more > 0
            && let Some(id) = self.nodes[next].hole()
        {
            if room == more {
                self.bins.remove(id);
                self.unlink(next);
            } else {
                let size = self.bins.holes[id].size - more;
                self.bins.change(id, end + more, size);
            }
            self.allocated += more;
        }
        Ok(())
    }

    /// Returns the free bytes behind a used range that it could take in, including those of the
    /// small-object region.
    fn room_behind(&self, placed: Placed, end: u64) -> u64 {
        if self.is_edge(end) {
            return 0;
        }
        match (self.nodes[self.nodes[placed.node].next].hole(), self.coalesced_region()) {
            (Some(_), Some(joined)) if joined.start == end => joined.end - end,
            (Some(id), _) => self.bins.holes[id].size,
            (None, _) => 0,
        }
    }

    /// Frees the part `part` of the used range `placed` of `size` bytes. The rest before it keeps
    /// the node, the rest behind it gets a new one. Returns `None` and changes nothing if no node
    /// is left; the whole range can still be freed then. O(1).
    pub(crate) fn free_part(
        &mut self,
        placed: Placed,
        size: u64,
        part: Range<u64>,
    ) -> Option<Option<Placed>> {
        if part.end - part.start < size && !self.has_free_nodes() {
            return None;
        }
        let Range { start, end } = part;
        let behind = (end < placed.offset + size).then(|| {
            self.live += 1;
            Placed { node: self.link_used_after(placed.node, end), offset: end }
        });
        if start > placed.offset {
            self.cut_tail(placed, end - placed.offset, start - placed.offset);
        } else {
            self.free(placed.node, start, end - start);
        }
        Some(behind)
    }

    /// Frees used ranges, each listed once. Ranges that follow each other in the list and in the
    /// space are coalesced before they reach a bin. O(ranges).
    pub(crate) fn free_batch(&mut self, run: &[Placed]) {
        self.coalesce();
        let mut rest = run;
        while let Some((&first, mut tail)) = rest.split_first() {
            while let Some((&Placed { node, offset }, after)) = tail.split_first()
                && node == self.nodes[first.node].next
                && !self.is_edge(offset)
            {
                self.unlink(node);
                self.live -= 1;
                tail = after;
            }
            let size = self.range_of(first.node).end - first.offset;
            self.allocated -= size;
            self.live -= 1;
            self.release(first.node, first.offset, size);
            rest = tail;
        }
        self.fresh &= run.is_empty();
        self.trim_holes(run.len());
    }
}

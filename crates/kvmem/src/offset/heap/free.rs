//! *Free*: a used range becomes free at once, and a hole at once or a little later.

use super::deferred::DeferredFree;
use super::heap::Heap;
use super::ranges::{Placed, SizedRange};

impl Heap {
    /// Frees the used range `node`, `[offset, offset + size)`. O(1).
    #[inline]
    pub(crate) fn free(&mut self, node: u32, offset: u64, size: u64) {
        self.ranges.count_freed(size);
        self.fresh = false;
        let freed = DeferredFree { node, offset, size };
        if self.keeps(freed) {
            return;
        }
        let burst = self.deferred.count_free();
        if self.free_bytes() / 2 < size && self.policy.expects(size) {
            self.deferred.coalesce_into(&mut self.ranges);
            self.deferred.put_for_reuse(freed);
        } else if burst {
            if self.deferred.are_due() {
                self.deferred.coalesce_all(&mut self.ranges);
            }
            self.deferred.put(freed);
        } else {
            self.deferred.coalesce_into(&mut self.ranges);
            self.ranges.release(node, offset, size);
            self.ranges.trim_holes(1);
        }
    }

    /// Keeps a freed range in a [quick list](super::quick_lists) if the space is roomy; returns
    /// whether it did. Otherwise coalesces those that are there.
    #[inline(always)]
    fn keeps(&mut self, freed: DeferredFree) -> bool {
        if self.is_quick(freed.size) {
            if self.quick.push(freed) {
                return true;
            }
            if !self.quick.are_stale() {
                return false;
            }
        }
        if !self.quick.is_empty() {
            self.quick.coalesce_all(&mut self.ranges);
        }
        false
    }

    /// Frees used ranges, each listed once. Ranges that follow each other in the list and in the
    /// space are coalesced before they reach a bin. O(ranges).
    pub(crate) fn free_batch(&mut self, batch: &[Placed]) {
        self.coalesce();
        self.ranges.free_batch(batch);
        self.fresh &= batch.is_empty();
        self.ranges.trim_holes(batch.len());
    }

    /// Frees the ranges of a request that failed. The space is as before, including its order.
    pub(crate) fn give_back(&mut self, pieces: &[SizedRange]) {
        let fresh = self.fresh;
        for piece in pieces {
            self.free(piece.placed.node, piece.placed.offset, piece.size);
        }
        self.coalesce();
        self.fresh = fresh;
    }
}

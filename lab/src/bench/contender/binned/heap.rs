//! Bins, bitmaps, nodes and the stack of free nodes.

use super::small_float::{MANTISSA_BITS, MANTISSA_MASK, bin_ceil, bin_floor, bin_size};

/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// A range of the space, used or free, or a node without a range.
#[derive(Clone, Copy)]
pub(super) struct Node {
    offset: u32,
    size: u32,
    /// Neighbours in the list of the node's bin, if the range is free.
    bin_prev: u32,
    bin_next: u32,
    /// Neighbours in address order.
    near_prev: u32,
    near_next: u32,
    used: bool,
}

const BLANK: Node = Node {
    offset: 0,
    size: 0,
    bin_prev: NONE,
    bin_next: NONE,
    near_prev: NONE,
    near_next: NONE,
    used: false,
};

/// Bins, bitmaps and nodes; offsets and sizes in units.
pub(super) struct BinHeap<const ROUND: bool> {
    exponents: u32,
    mantissas: [u8; 32],
    heads: [u32; 256],
    nodes: Box<[Node]>,
    spare: Box<[u32]>,
    /// Number of free nodes on the stack `spare`.
    spare_len: usize,
}

impl<const ROUND: bool> BinHeap<ROUND> {
    pub(super) fn new(size: u32, max_nodes: u32) -> Self {
        let mut heap = Self {
            exponents: 0,
            mantissas: [0; 32],
            heads: [NONE; 256],
            nodes: vec![BLANK; max_nodes as usize].into_boxed_slice(),
            // Popped from the end, so nodes are first used in memory order.
            spare: (0..max_nodes).rev().collect(),
            spare_len: max_nodes as usize,
        };
        heap.file(0, size, NONE, NONE);
        heap
    }

    /// Returns the first non-empty bin at or above `from`.
    #[inline]
    fn first_bin_from(&self, from: u8) -> Option<u8> {
        let (exponent, mantissa) = (from >> MANTISSA_BITS, from & MANTISSA_MASK as u8);
        let here = self.mantissas[usize::from(exponent)] & (0xff << mantissa);
        if here != 0 {
            return Some(exponent << MANTISSA_BITS | here.trailing_zeros() as u8);
        }
        // Exponents go up to 31, and a shift by 32 must leave no bits.
        let above = self.exponents & (u64::MAX << (exponent + 1)) as u32;
        if above == 0 {
            return None;
        }
        let exponent = above.trailing_zeros() as u8 & 31;
        let mantissa = self.mantissas[usize::from(exponent)].trailing_zeros() as u8;
        Some(exponent << MANTISSA_BITS | mantissa)
    }

    /// Returns a number above those of all bins that have a free range.
    pub(super) fn bins_below(&self) -> u32 {
        let Some(exponent) = self.exponents.checked_ilog2() else { return 0 };
        (exponent << MANTISSA_BITS) + self.mantissas[exponent as usize].ilog2() + 1
    }

    /// Returns whether no node is left to allocate with.
    #[inline]
    pub(super) fn is_out_of_nodes(&self) -> bool {
        // The last node is kept for the remainder of a split.
        self.spare_len <= 1
    }

    /// Takes a range of at least `requested` units; returns its offset and node.
    #[inline]
    pub(super) fn allocate(&mut self, requested: u32) -> Option<(u32, u32)> {
        if self.is_out_of_nodes() {
            return None;
        }
        let bin_min = bin_ceil(requested);
        let size = if ROUND { bin_size(bin_min) } else { requested };
        let bin = self.first_bin_from(bin_min)?;
        let index = self.heads[usize::from(bin)];
        let node = &mut self.nodes[index as usize];
        let (offset, total, next, after) = (node.offset, node.size, node.bin_next, node.near_next);
        node.size = size;
        node.used = true;
        self.heads[usize::from(bin)] = next;
        if next == NONE {
            self.mark_empty(bin);
        } else {
            self.nodes[next as usize].bin_prev = NONE;
        }
        let rest = total - size;
        if rest > 0 {
            let tail = self.file(offset + size, rest, index, after);
            if after != NONE {
                self.nodes[after as usize].near_prev = tail;
            }
            self.nodes[index as usize].near_next = tail;
        }
        Some((offset, index))
    }

    /// Frees the range of node `index` and merges it with free neighbours; returns the bin of the
    /// merged range.
    #[inline]
    pub(super) fn free(&mut self, index: u32) -> u8 {
        let node = self.nodes[index as usize];
        let (mut offset, mut size) = (node.offset, node.size);
        let (mut before, mut after) = (node.near_prev, node.near_next);
        if before != NONE {
            let prev = self.nodes[before as usize];
            if !prev.used {
                offset = prev.offset;
                size += prev.size;
                self.unfile(before, prev);
                before = prev.near_prev;
            }
        }
        if after != NONE {
            let next = self.nodes[after as usize];
            if !next.used {
                size += next.size;
                self.unfile(after, next);
                after = next.near_next;
            }
        }
        self.give_spare(index);
        let merged = self.file(offset, size, before, after);
        if before != NONE {
            self.nodes[before as usize].near_next = merged;
        }
        if after != NONE {
            self.nodes[after as usize].near_prev = merged;
        }
        bin_floor(size)
    }

    /// Adds a free range at the head of its bin, in a spare node.
    #[inline]
    fn file(&mut self, offset: u32, size: u32, near_prev: u32, near_next: u32) -> u32 {
        let bin = bin_floor(size);
        let head = self.heads[usize::from(bin)];
        if head == NONE {
            let exponent = bin >> MANTISSA_BITS;
            self.mantissas[usize::from(exponent)] |= 1 << (bin & MANTISSA_MASK as u8);
            self.exponents |= 1 << exponent;
        }
        self.spare_len -= 1;
        let index = self.spare[self.spare_len];
        self.nodes[index as usize] = Node {
            offset,
            size,
            bin_prev: NONE,
            bin_next: head,
            near_prev,
            near_next,
            used: false,
        };
        if head != NONE {
            self.nodes[head as usize].bin_prev = index;
        }
        self.heads[usize::from(bin)] = index;
        index
    }

    /// Removes the free node `index`, of which `node` is a copy, from its bin and makes it spare.
    #[inline]
    fn unfile(&mut self, index: u32, node: Node) {
        if node.bin_prev != NONE {
            self.nodes[node.bin_prev as usize].bin_next = node.bin_next;
            if node.bin_next != NONE {
                self.nodes[node.bin_next as usize].bin_prev = node.bin_prev;
            }
        } else {
            let bin = bin_floor(node.size);
            self.heads[usize::from(bin)] = node.bin_next;
            if node.bin_next != NONE {
                self.nodes[node.bin_next as usize].bin_prev = NONE;
            } else {
                self.mark_empty(bin);
            }
        }
        self.give_spare(index);
    }

    #[inline]
    fn mark_empty(&mut self, bin: u8) {
        let exponent = bin >> MANTISSA_BITS;
        let mantissas = &mut self.mantissas[usize::from(exponent)];
        *mantissas &= !(1 << (bin & MANTISSA_MASK as u8));
        if *mantissas == 0 {
            self.exponents &= !(1 << exponent);
        }
    }

    #[inline]
    fn give_spare(&mut self, index: u32) {
        self.spare[self.spare_len] = index;
        self.spare_len += 1;
    }

    /// Returns the bytes of the nodes in use and of their entries in the stack.
    pub(super) fn metadata_bytes(&self) -> usize {
        (self.nodes.len() - self.spare_len) * (size_of::<Node>() + size_of::<u32>())
    }

    /// Returns whether a bin has a range for `requested` units.
    #[cfg(test)]
    pub(super) fn has_for(&self, requested: u32) -> bool {
        self.first_bin_from(bin_ceil(requested)).is_some()
    }

    /// Returns whether `index` is a used node at `offset`.
    pub(super) fn is_used_at(&self, index: u32, offset: u32) -> bool {
        let node = &self.nodes[index as usize];
        node.used && node.offset == offset
    }
}

//! *Recency*: blocks in the order of their last use, and the bytes above each.
//!
//! Every use gets the next position. A Fenwick tree over positions holds the bytes of the block
//! that was last used there, so the bytes of all later uses are a difference of two sums. When
//! positions run out, the blocks are moved together, in their order, into twice as many positions
//! as there are blocks. Sums are modulo 2^64.
//!
//! ```text
//! uses        a  b  c  b          a:8  b:4  c:4 bytes
//! positions   1  2  3  4
//! bytes       8  0  4  4          above a, itself included: 16
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Positions of an empty tree.
const POSITIONS_MIN: usize = 1024;

/// A block that was used.
#[derive(Clone, Copy, Debug)]
struct UsedBlock {
    position: usize,
    bytes: u64,
    reused: bool,
}

/// Blocks in the order of their last use.
#[derive(Clone, Debug)]
pub struct RecencyTree {
    blocks: HashMap<u64, UsedBlock>,
    /// `sums[p]` has the bytes of the positions from `p - (p & -p)` to `p - 1`, counted from 0.
    sums: Vec<u64>,
    /// The block that was used at each position; the block itself knows whether it was the last
    /// use.
    uses: Vec<u64>,
    bytes: u64,
}

impl Default for RecencyTree {
    fn default() -> Self {
        RecencyTree {
            blocks: HashMap::new(),
            sums: vec![0; POSITIONS_MIN + 1],
            uses: Vec::with_capacity(POSITIONS_MIN),
            bytes: 0,
        }
    }
}

impl RecencyTree {
    /// Returns the number of blocks. O(1).
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns the bytes of all blocks. O(1).
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of blocks that were used more than once, and how many there are. O(N).
    pub fn reused(&self) -> (u64, u64) {
        let reused = self.blocks.values().filter(|block| block.reused);
        reused.fold((0, 0), |(bytes, blocks), block| (block.bytes.wrapping_add(bytes), blocks + 1))
    }

    /// Returns the bytes of the blocks that were used after this one, and of itself; `None` if it
    /// was never used. O(log N).
    pub fn above(&self, block: u64) -> Option<(u64, u64)> {
        let UsedBlock { position, bytes, .. } = *self.blocks.get(&block)?;
        Some((self.bytes.wrapping_sub(self.before(position)), bytes))
    }

    /// Records a use: the block becomes the latest one. Its bytes are those of the first use.
    /// O(log N), amortized.
    pub fn use_block(&mut self, block: u64, bytes: u64) {
        if self.uses.len() + 1 == self.sums.len() {
            self.compact();
        }
        let position = self.uses.len();
        self.uses.push(block);
        let bytes = match self.blocks.entry(block) {
            Entry::Occupied(mut entry) => {
                let used = entry.get_mut();
                let (before, bytes) = (used.position, used.bytes);
                *used = UsedBlock { position, bytes, reused: true };
                self.add(before, bytes.wrapping_neg());
                bytes
            }
            Entry::Vacant(entry) => {
                entry.insert(UsedBlock { position, bytes, reused: false });
                self.bytes = self.bytes.wrapping_add(bytes);
                bytes
            }
        };
        self.add(position, bytes);
    }

    /// Forgets all blocks for which `keep` is false. O(N).
    pub fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.blocks.retain(|block, _| keep(*block));
        let bytes = self.blocks.values().map(|block| block.bytes);
        self.bytes = bytes.fold(0, u64::wrapping_add);
        self.compact();
    }

    /// Calls `f` with each block and its bytes, the one whose last use is longest ago first. O(N).
    pub fn for_each(&self, mut f: impl FnMut(u64, u64)) {
        for (position, block) in self.uses.iter().enumerate() {
            if let Some(used) = self.blocks.get(block).filter(|used| used.position == position) {
                f(*block, used.bytes);
            }
        }
    }

    /// Moves the blocks together, in their order.
    fn compact(&mut self) {
        let mut uses = Vec::new();
        let positions = (2 * self.blocks.len()).max(POSITIONS_MIN);
        uses.reserve_exact(positions);
        self.sums.clear();
        self.sums.resize(positions + 1, 0);
        for (position, block) in self.uses.iter().enumerate() {
            if let Some(used) = self.blocks.get_mut(block)
                && used.position == position
            {
                used.position = uses.len();
                uses.push(*block);
                self.sums[uses.len()] = used.bytes;
            }
        }
        for p in 1..=positions {
            let parent = p + (p & p.wrapping_neg());
            if parent <= positions {
                self.sums[parent] = self.sums[parent].wrapping_add(self.sums[p]);
            }
        }
        self.uses = uses;
        self.sums.shrink_to(positions + 1);
    }

    /// Adds to the bytes at a position, modulo 2^64.
    fn add(&mut self, position: usize, bytes: u64) {
        let mut p = position + 1;
        while p < self.sums.len() {
            self.sums[p] = self.sums[p].wrapping_add(bytes);
            p += p & p.wrapping_neg();
        }
    }

    /// Sums the bytes of the positions before this one.
    fn before(&self, position: usize) -> u64 {
        let (mut p, mut sum) = (position, 0u64);
        while p > 0 {
            sum = sum.wrapping_add(self.sums[p]);
            p &= p - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use kvmem_testkit::random::Random;

    use super::*;

    #[test]
    fn distances_are_those_of_a_plain_list() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let mut tree = RecencyTree::default();
            // The latest block is the last one.
            let mut list: Vec<(u64, u64)> = Vec::new();
            let ids = 1 + random.below(2000);
            for step in 0..6000 {
                let block = random.log_below(ids);
                let place = list.iter().position(|(other, _)| *other == block);
                let expected = place
                    .map(|at| (list[at..].iter().map(|(_, bytes)| bytes).sum::<u64>(), list[at].1));
                assert_eq!(tree.above(block), expected, "seed {seed}, step {step}");
                let bytes = match place {
                    Some(at) => list.remove(at).1,
                    None => 1 + random.below(100),
                };
                list.push((block, bytes));
                tree.use_block(block, bytes);
                if random.once_in(1500) {
                    list.retain(|(block, _)| block % 3 > 0);
                    tree.retain(|block| block % 3 > 0);
                }
                assert_eq!(tree.len(), list.len());
            }
            assert_eq!(tree.bytes(), list.iter().map(|(_, bytes)| bytes).sum::<u64>());
            let mut order = Vec::new();
            tree.for_each(|block, bytes| order.push((block, bytes)));
            assert_eq!(order, list, "seed {seed}");
        }
    }

    #[test]
    fn blocks_used_again_are_counted() {
        let mut tree = RecencyTree::default();
        for (block, bytes) in [(1, 10), (2, 20), (1, 10), (3, 30), (1, 10), (3, 30)] {
            tree.use_block(block, bytes);
        }
        assert_eq!((tree.reused(), tree.bytes()), ((40, 2), 60));
    }
}

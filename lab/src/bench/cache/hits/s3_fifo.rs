//! S3-FIFO: three queues. New blocks pass through a small queue of a tenth of the capacity. Blocks
//! used more than once meanwhile move to the main queue; the others are evicted and leave a ghost.
//! A block with a ghost enters the main queue directly. A used block at the end of the main queue
//! goes to its beginning.

use std::collections::{HashMap, HashSet, VecDeque};

use super::model::Blocks;

/// The largest number of uses that is counted.
const MAX_USES: u8 = 3;

pub(super) struct S3Fifo {
    capacity: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: VecDeque<u32>,
    is_ghost: HashSet<u32>,
    /// Uses of the cached blocks.
    uses: HashMap<u32, u8>,
}

impl S3Fifo {
    pub(super) fn new(capacity: usize) -> S3Fifo {
        let (small, main, ghosts) = Default::default();
        S3Fifo { capacity, small, main, ghosts, is_ghost: HashSet::new(), uses: HashMap::new() }
    }

    fn small_capacity(&self) -> usize {
        (self.capacity / 10).max(1)
    }

    fn evict(&mut self) {
        if self.small.len() >= self.small_capacity() || self.main.is_empty() {
            self.evict_small();
        } else {
            self.evict_main();
        }
    }

    fn evict_small(&mut self) {
        while let Some(block) = self.small.pop_front() {
            if self.uses[&block] > 1 {
                self.uses.insert(block, 0);
                self.main.push_back(block);
                if self.main.len() > self.capacity - self.small_capacity() {
                    return self.evict_main();
                }
                continue;
            }
            self.uses.remove(&block);
            if self.is_ghost.insert(block) {
                self.ghosts.push_back(block);
            }
            while self.ghosts.len() > self.capacity - self.small_capacity() {
                let Some(oldest) = self.ghosts.pop_front() else { break };
                self.is_ghost.remove(&oldest);
            }
            return;
        }
        self.evict_main();
    }

    fn evict_main(&mut self) {
        while let Some(block) = self.main.pop_front() {
            match self.uses.get_mut(&block) {
                Some(uses) if *uses > 0 => {
                    *uses -= 1;
                    self.main.push_back(block);
                }
                _ => {
                    self.uses.remove(&block);
                    return;
                }
            }
        }
    }
}

impl Blocks for S3Fifo {
    fn holds(&self, block: u32) -> bool {
        self.uses.contains_key(&block)
    }

    fn access(&mut self, block: u32) {
        if let Some(uses) = self.uses.get_mut(&block) {
            *uses = (*uses + 1).min(MAX_USES);
            return;
        }
        while self.uses.len() >= self.capacity {
            self.evict();
        }
        let queue = if self.is_ghost.contains(&block) { &mut self.main } else { &mut self.small };
        queue.push_back(block);
        self.uses.insert(block, 0);
    }
}

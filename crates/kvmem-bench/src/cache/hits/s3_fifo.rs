//! *S3-FIFO*: three queues. New blocks go through a small one, of a tenth of the room; those used
//! more than once on the way move to the main one, the others leave a ghost behind. What has a
//! ghost comes into the main queue at once; there a block that was used goes round again.

use std::collections::{HashMap, HashSet, VecDeque};

use super::model::Blocks;

/// Uses that are counted.
const MOST_USES: u8 = 3;

pub(super) struct S3Fifo {
    room: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: VecDeque<u32>,
    is_ghost: HashSet<u32>,
    /// Uses of what is held.
    uses: HashMap<u32, u8>,
}

impl S3Fifo {
    pub(super) fn new(room: usize) -> S3Fifo {
        let (small, main, ghosts) = Default::default();
        S3Fifo { room, small, main, ghosts, is_ghost: HashSet::new(), uses: HashMap::new() }
    }

    fn small_room(&self) -> usize {
        (self.room / 10).max(1)
    }

    fn evict(&mut self) {
        if self.small.len() >= self.small_room() || self.main.is_empty() {
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
                if self.main.len() > self.room - self.small_room() {
                    return self.evict_main();
                }
                continue;
            }
            self.uses.remove(&block);
            if self.is_ghost.insert(block) {
                self.ghosts.push_back(block);
            }
            while self.ghosts.len() > self.room - self.small_room() {
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
            *uses = (*uses + 1).min(MOST_USES);
            return;
        }
        while self.uses.len() >= self.room {
            self.evict();
        }
        let queue = if self.is_ghost.contains(&block) { &mut self.main } else { &mut self.small };
        queue.push_back(block);
        self.uses.insert(block, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_goes_through_the_small_queue_and_what_comes_back_stays() {
        let mut cache = S3Fifo::new(20);
        for _ in 0..4 {
            (0..10).for_each(|block| cache.access(block));
        }
        (100..200).for_each(|block| cache.access(block));
        assert!((0..10).all(|block| cache.holds(block)) && !cache.holds(150));
        cache.access(195);
        (200..250).for_each(|block| cache.access(block));
        assert!(!cache.holds(195));
        cache.access(249);
        // Evicted a moment ago.
        let ghost = (200..249).rev().find(|&block| !cache.holds(block)).unwrap();
        cache.access(ghost);
        (300..320).for_each(|block| cache.access(block));
        assert!(cache.holds(ghost) && cache.uses.len() <= 20);
    }
}

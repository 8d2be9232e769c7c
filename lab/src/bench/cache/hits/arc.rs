//! ARC: two orders by last use, of blocks used once (`T1`) and more often (`T2`), each with its
//! ghosts (`B1`, `B2`). A use of a ghost moves the target size of `T1` towards the list of that
//! ghost.

use std::collections::{BTreeMap, HashMap};

use super::model::Blocks;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    T1,
    T2,
    B1,
    B2,
}

pub(super) struct ArcPolicy {
    capacity: usize,
    /// The target size of `T1`.
    share: f64,
    /// List and position in its order.
    at: HashMap<u32, (List, u64)>,
    orders: [BTreeMap<u64, u32>; 4],
    next: u64,
}

impl ArcPolicy {
    pub(super) fn new(capacity: usize) -> ArcPolicy {
        ArcPolicy { capacity, share: 0.0, at: HashMap::new(), orders: Default::default(), next: 0 }
    }

    fn len(&self, list: List) -> usize {
        self.orders[list as usize].len()
    }

    /// Moves a block to the end of a list.
    fn put(&mut self, block: u32, list: List) {
        self.take(block);
        self.next += 1;
        self.orders[list as usize].insert(self.next, block);
        self.at.insert(block, (list, self.next));
    }

    fn take(&mut self, block: u32) {
        if let Some((list, place)) = self.at.remove(&block) {
            self.orders[list as usize].remove(&place);
        }
    }

    /// Returns the first block of a list.
    fn first(&self, list: List) -> Option<u32> {
        self.orders[list as usize].first_key_value().map(|(_, &block)| block)
    }

    fn drop_first(&mut self, list: List) {
        if let Some(block) = self.first(list) {
            self.take(block);
        }
    }

    /// REPLACE of the paper: a block of `T1` or `T2` becomes a ghost.
    fn replace(&mut self, in_b2: bool) {
        let t1 = self.len(List::T1);
        let from_t1 = t1 > 0 && (t1 as f64 > self.share || (in_b2 && t1 as f64 == self.share));
        let (from, to) = if from_t1 || self.len(List::T2) == 0 {
            (List::T1, List::B1)
        } else {
            (List::T2, List::B2)
        };
        if let Some(block) = self.first(from) {
            self.put(block, to);
        }
    }
}

impl Blocks for ArcPolicy {
    fn holds(&self, block: u32) -> bool {
        matches!(self.at.get(&block), Some((List::T1 | List::T2, _)))
    }

    fn access(&mut self, block: u32) {
        let (b1, b2) = (self.len(List::B1) as f64, self.len(List::B2) as f64);
        match self.at.get(&block).map(|&(list, _)| list) {
            Some(List::T1 | List::T2) => self.put(block, List::T2),
            Some(List::B1) => {
                self.share = (self.share + (b2 / b1).max(1.0)).min(self.capacity as f64);
                self.replace(false);
                self.put(block, List::T2);
            }
            Some(List::B2) => {
                self.share = (self.share - (b1 / b2).max(1.0)).max(0.0);
                self.replace(true);
                self.put(block, List::T2);
            }
            None => {
                let once = self.len(List::T1) + self.len(List::B1);
                let all = once + self.len(List::T2) + self.len(List::B2);
                if once == self.capacity {
                    if self.len(List::T1) < self.capacity {
                        self.drop_first(List::B1);
                        self.replace(false);
                    } else {
                        self.drop_first(List::T1);
                    }
                } else if all >= self.capacity {
                    if all == 2 * self.capacity {
                        self.drop_first(List::B2);
                    }
                    self.replace(false);
                }
                self.put(block, List::T1);
            }
        }
    }
}

//! Belady's rule. The head of [`super`] explains why it is the optimum for whole prefixes.

use std::collections::BTreeMap;

use anyhow::Result;

use super::Trace;
use super::model::Model;

pub(super) struct Optimum {
    capacity: usize,
    /// For each block the requests that use it, the next one last.
    uses: Vec<Vec<u32>>,
    /// For each cached block its next use and its position in the chain.
    held: Vec<Option<(u32, u32)>>,
    /// The cached blocks. The one with the latest use, at its last position, is evicted first.
    order: BTreeMap<(u32, u32), Vec<u32>>,
    len: usize,
}

impl Optimum {
    pub(super) fn new(capacity: usize, trace: &Trace) -> Optimum {
        let mut uses = vec![Vec::new(); trace.distinct as usize];
        for (number, chain) in trace.requests.iter().enumerate().rev() {
            chain.iter().for_each(|&block| uses[block as usize].push(number as u32));
        }
        let held = vec![None; uses.len()];
        Optimum { capacity, held, uses, order: BTreeMap::new(), len: 0 }
    }

    fn take(&mut self, block: u32) {
        if let Some(at) = self.held[block as usize].take() {
            self.len -= 1;
            if let Some(same) = self.order.get_mut(&at) {
                same.retain(|&other| other != block);
                if same.is_empty() {
                    self.order.remove(&at);
                }
            }
        }
    }
}

impl Model for Optimum {
    fn request(&mut self, chain: &[u32]) -> Result<u64> {
        let found = chain.iter().take_while(|&&block| self.held[block as usize].is_some()).count();
        for (place, &block) in chain.iter().enumerate() {
            self.take(block);
            self.uses[block as usize].pop();
            if let Some(&next) = self.uses[block as usize].last() {
                let at = (next, place as u32);
                self.held[block as usize] = Some(at);
                self.order.entry(at).or_default().push(block);
                self.len += 1;
            }
        }
        while self.len > self.capacity {
            let last = self.order.last_entry().and_then(|entry| entry.get().last().copied());
            let Some(block) = last else { break };
            self.take(block);
        }
        Ok(found as u64)
    }
}

//! *Optimum*: Belady's rule. See the head of [`super`] for why it is the optimum of whole prefixes.

use std::collections::BTreeMap;

use super::model::Model;
use super::{MeasureError, Trace};

pub(super) struct Optimum {
    room: usize,
    /// Of each block the requests that use it, the next one last.
    uses: Vec<Vec<u32>>,
    /// When each held block is used next, and its place in the chain.
    held: Vec<Option<(u32, u32)>>,
    /// The held blocks: what is used last, at its last place, goes first.
    order: BTreeMap<(u32, u32), Vec<u32>>,
    len: usize,
}

impl Optimum {
    pub(super) fn new(room: usize, trace: &Trace) -> Optimum {
        let mut uses = vec![Vec::new(); trace.distinct as usize];
        for (number, chain) in trace.requests.iter().enumerate().rev() {
            chain.iter().for_each(|&block| uses[block as usize].push(number as u32));
        }
        Optimum { room, held: vec![None; uses.len()], uses, order: BTreeMap::new(), len: 0 }
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
    fn request(&mut self, chain: &[u32]) -> Result<u64, MeasureError> {
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
        while self.len > self.room {
            let last = self.order.last_entry().and_then(|entry| entry.get().last().copied());
            let Some(block) = last else { break };
            self.take(block);
        }
        Ok(found as u64)
    }
}

//! The policy of `vllm-marconi-offload` 0.2, a connector of vLLM, with the settings of its README.
//! A block's score is `uses · exp(-decay · age) / (depth + 1)`, and the lowest one is evicted. All
//! uses of a block count, also those before it was evicted. The age is in steps of the scheduler;
//! here a request is a step.
//!
//! All scores fall by the same factor in a step, so their order only changes with uses. The order
//! of their logarithms without that factor is theirs.

use std::collections::{BTreeSet, HashMap};

use super::CacheMeasureError;
use super::model::Model;

/// The README's `eviction_decay`.
const DECAY: f64 = 0.005;
/// With more blocks than this, those that were used once are no longer counted.
const MAX_COUNTED: usize = 100_000;

/// A logarithm of a score, as an integer with the same order, and the block.
type Scored = (i64, u32);

pub(super) struct Marconi {
    capacity: usize,
    step: f64,
    uses: HashMap<u32, u32>,
    scores: HashMap<u32, i64>,
    order: BTreeSet<Scored>,
}

impl Marconi {
    pub(super) fn new(capacity: usize) -> Marconi {
        let (uses, scores, order) = Default::default();
        Marconi { capacity, step: 0.0, uses, scores, order }
    }

    fn note_use(&mut self, block: u32) {
        *self.uses.entry(block).or_default() += 1;
        if self.uses.len() > MAX_COUNTED {
            self.uses.retain(|_, uses| *uses > 1);
        }
    }

    /// Inserts a block, or gives it its present score.
    fn place(&mut self, block: u32, depth: usize) {
        let uses = f64::from(self.uses.get(&block).copied().unwrap_or(0).max(1));
        let logarithm = uses.ln() + DECAY * self.step - (depth as f64 + 1.0).ln();
        let score = (logarithm * 1e9) as i64;
        if let Some(before) = self.scores.insert(block, score) {
            self.order.remove(&(before, block));
        }
        self.order.insert((score, block));
    }
}

impl Model for Marconi {
    fn request(&mut self, chain: &[u32]) -> Result<u64, CacheMeasureError> {
        self.step += 1.0;
        chain.iter().for_each(|&block| self.note_use(block));
        let found = chain.iter().take_while(|&block| self.scores.contains_key(block)).count();
        for (depth, &block) in chain.iter().enumerate() {
            self.place(block, depth);
        }
        while self.scores.len() > self.capacity {
            let Some((_, victim)) = self.order.pop_first() else { break };
            self.scores.remove(&victim);
        }
        Ok(found as u64)
    }
}

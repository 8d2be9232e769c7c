//! *Touching*: values that leave the memory, and the starts of their chains, count as used in the
//! tier.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::node::Node;

/// The most ancestors of the values of a job, or of a value that leaves the memory, that count as
/// used in the tier.
const MAX_TOUCHED: usize = 2048;

/// A value that was marked as used in the tier is not marked again before this number of values has
/// left the memory.
pub(super) const LATELY: u64 = 1024;

impl Node {
    /// Marks a value that leaves the memory as used in the tier, then its ancestors, so that the
    /// tier evicts none of them before it. Those that were marked lately stay as they are: the
    /// values of a chain leave the memory one after the other.
    pub(in crate::node) fn touch_chain(&mut self, slot: u32) {
        let queue = self.tier.as_mut().expect("there is a tier");
        queue.leavings += 1;
        let now = queue.leavings;
        let mut next = Some(slot);
        for _ in 0..MAX_TOUCHED {
            let is_due = |it: &u32| now - self.locals[*it as usize].touched_at > LATELY;
            let Some(slot) = next.filter(is_due) else { break };
            self.touch_in_tier(slot, now);
            next = self.parent_of(slot);
        }
    }

    /// Marks all values that the memory and the tier have as used in the tier, in the order in
    /// which the memory would evict them. Without it, a tier that outlives the memory would evict
    /// the starts of fetched chains first: a fetch uses the start before the end, and a value
    /// counts as used in the tier when it leaves the memory. O(n log n) for n values.
    pub(crate) fn touch_all(&mut self) {
        if !self.has_tier() {
            return;
        }
        let mut newest_first: Vec<u32> = self.committed_slots().collect();
        newest_first.sort_unstable_by_key(|slot| Reverse(self.locals[*slot as usize].order));
        let mut seen = HashSet::new();
        let mut chains: Vec<u32> =
            self.with_ancestors(newest_first.into_iter(), usize::MAX).flatten().collect();
        chains.retain(|slot| seen.insert(*slot));
        let now = self.tier.as_ref().map_or(0, |it| it.leavings);
        chains.into_iter().rev().for_each(|slot| self.touch_in_tier(slot, now));
    }

    fn touch_in_tier(&mut self, slot: u32, now: u64) {
        if self.entry(slot).is_clean() {
            let (namespace, key) = self.named_key(slot);
            let key = self.key_in_tier(namespace, &key);
            self.tier.as_ref().expect("there is a tier").tier.touch(&[&key]);
        }
        self.locals[slot as usize].touched_at = now;
    }

    /// Marks the ancestors of stored values as used in the tier, the start of each chain last.
    pub(super) fn touch_ancestors(&mut self, stored: &[u32]) {
        let now = self.tier.as_ref().expect("there is a tier").leavings;
        let (mut seen, mut chains) = (HashSet::new(), Vec::new());
        for slot in stored.iter().filter(|it| self.parent_of(**it).is_some()) {
            // The chain of a value that is an ancestor itself is done.
            let mut next = self.parent_of(*slot).filter(|_| !seen.contains(slot));
            while let Some(parent) = next.filter(|_| chains.len() < MAX_TOUCHED) {
                seen.insert(parent);
                chains.push(parent);
                next = self.parent_of(parent);
            }
        }
        stored.iter().for_each(|slot| self.locals[*slot as usize].touched_at = now);
        chains.into_iter().for_each(|slot| self.touch_in_tier(slot, now));
    }
}

//! *Parents* of values that only the tier has, which does not store them.

use std::collections::HashMap;

use crate::node::Node;

/// The most parents of each of the two maps of [`TierParents`].
const MAX_PARENTS: usize = 1 << 19;

/// The parents of values that only the tier has, which does not store them: hashes of keys. Those
/// that were noted last are known, and of the others half.
#[derive(Default)]
pub(super) struct TierParents {
    pub(super) now: HashMap<u64, u64>,
    pub(super) before: HashMap<u64, u64>,
}

impl TierParents {
    pub(super) fn note(&mut self, hash: u64, parent: u64) {
        if self.now.len() >= MAX_PARENTS {
            self.before = std::mem::take(&mut self.now);
        }
        self.now.insert(hash, parent);
    }

    pub(super) fn of(&self, hash: u64) -> Option<u64> {
        self.now.get(&hash).or_else(|| self.before.get(&hash)).copied()
    }
}

impl Node {
    /// Notes the parent of a value that only the tier has from now on.
    pub(in crate::node) fn note_parent_of_stored(&mut self, slot: u32) {
        if let Some(parent) = self.parent_of(slot) {
            self.locals[parent as usize].has_stored_children = true;
        }
        let parent = self.entry(slot).parent();
        let (namespace, key) = self.named_key(slot);
        let hash = self.hash_of_key(namespace, &key);
        if let Some(queue) = self.tier.as_mut().filter(|_| parent != 0) {
            queue.parents.note(hash, parent);
        }
    }
}

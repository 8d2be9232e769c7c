//! *Removing*: values go because a client or an operator says so.

use super::node::Node;
use super::{EventKind, SessionIndex};
use crate::error::CallError;

impl Node {
    /// Removes the values of keys. Pinned ones keep their bytes until the last pin ends. Returns
    /// how many there were.
    pub(crate) fn remove(
        &mut self,
        session: SessionIndex,
        keys: &[&[u8]],
    ) -> Result<usize, CallError> {
        let session = self.sessions.get(session);
        if session.read_only {
            return Err(CallError::ReadOnly);
        }
        let namespace = session.namespace;
        if !keys.is_empty() {
            // The tier may have values that memory does not have.
            self.note_removal();
        }
        let mut removed = 0;
        for key in keys {
            if let Some(slot) = self.find(namespace, key) {
                self.withdraw(slot, EventKind::Removed);
                removed += 1;
            }
        }
        self.counters.removed += removed as u64;
        Ok(removed)
    }

    /// Removes all values of a namespace, or of all. Returns how many there were.
    pub(crate) fn clear(&mut self, namespace: Option<u16>) -> usize {
        self.note_removal();
        let all: Vec<u32> = self.committed_slots().collect();
        let of = |node: &Node, slot: u32| {
            namespace.is_none_or(|namespace| node.entry(slot).namespace() == namespace)
        };
        let mut removed = 0;
        for slot in all {
            if of(self, slot) {
                self.withdraw(slot, EventKind::Removed);
                removed += 1;
            }
        }
        self.counters.removed += removed as u64;
        removed
    }
}

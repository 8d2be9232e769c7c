//! *Removing*: values go because a client or an operator says so.

use super::node::Node;
use super::{EventKind, SessionIndex, Slice};
use crate::error::CallError;
use crate::format::State;

impl Node {
    /// Removes the values of keys. The bytes of pinned ones stay until the last pin ends. Returns
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
            } else {
                self.forget_evicted(namespace, key);
            }
        }
        self.counters.removed += removed as u64;
        Ok(removed)
    }

    /// Begins to remove all values of a namespace, or of all, that there are now.
    pub(crate) fn begin_clearing(&mut self, namespace: Option<u16>) -> Clearing {
        self.note_removal();
        self.clear_stacks(namespace);
        Clearing { namespace, before: self.next_batch(), from: 0, removed: 0 }
    }

    /// Goes on with it, for a slice of time. Returns whether all are removed.
    pub(crate) fn clear_some(&mut self, clearing: &mut Clearing, slice: Slice) -> bool {
        let all = self.locals.len() as u32;
        let end = clearing.from.saturating_add(LOOKED_AT).min(all);
        let mut left = REMOVED_AT_ONCE;
        while clearing.from < end && left > 0 {
            let slot = clearing.from;
            clearing.from += 1;
            let entry = self.entry(slot);
            let is_of = clearing.namespace.is_none_or(|it| entry.namespace() == it);
            // Values that came later stay.
            if self.word(slot).state == State::Committed && is_of && entry.batch() < clearing.before
            {
                self.withdraw(slot, EventKind::Removed);
                left -= 1;
                if slice.is_over() {
                    break;
                }
            }
        }
        let removed = u64::from(REMOVED_AT_ONCE - left);
        clearing.removed += removed;
        self.counters.removed += removed;
        clearing.from == all
    }

    /// [Clears](Self::begin_clearing) to the end. Returns the number of values that there were.
    #[cfg(test)]
    pub(crate) fn clear(&mut self, namespace: Option<u16>) -> u64 {
        let mut clearing = self.begin_clearing(namespace);
        while !self.clear_some(&mut clearing, Slice::endless()) {}
        clearing.removed
    }
}

/// Entries that one step of a [`Clearing`] looks at, and values that it removes: often less than a
/// millisecond of work.
const LOOKED_AT: u32 = 1 << 14;
const REMOVED_AT_ONCE: u32 = 512;

/// The removal of all values, in steps.
#[derive(Debug)]
pub(crate) struct Clearing {
    namespace: Option<u16>,
    /// The first batch that stays.
    before: u64,
    from: u32,
    pub(crate) removed: u64,
}

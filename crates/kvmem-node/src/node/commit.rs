//! *Committing*: reserved blocks become values, all of a batch at once.

use std::collections::HashSet;

use kvmem::tier::DataType;

use super::acquire::check_key;
use super::lists::PRIORITIES;
use super::node::Node;
use super::{BlockHandle, EventKind, SessionIndex};
use crate::error::CallError;
use crate::format::{Committing, State, announce};

/// One value of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitItem<'a> {
    pub(crate) handle: BlockHandle,
    pub(crate) key: &'a [u8],
    /// The key of the value before it in its chain.
    pub(crate) parent: Option<&'a [u8]>,
    /// The CRC-32C of the bytes that were written.
    pub(crate) checksum: Option<u32>,
    pub(crate) priority: u8,
    pub(crate) data_type: DataType,
    /// In milliseconds; 0: for ever.
    pub(crate) ttl_ms: u64,
}

impl Node {
    /// Makes the blocks of a batch visible under their keys, all or none, whatever happens to the
    /// server meanwhile. Values that the keys had before are replaced. A batch that was committed
    /// already succeeds again: a client repeats it when the server ended before it answered.
    pub(crate) fn commit(
        &mut self,
        session: SessionIndex,
        items: &[CommitItem<'_>],
        now: u64,
    ) -> Result<(), CallError> {
        if self.is_committed(session, items) {
            return Ok(());
        }
        let (mut slots, mut seen) =
            (Vec::with_capacity(items.len()), (HashSet::new(), HashSet::new()));
        for (index, item) in items.iter().enumerate() {
            check_key(item.key)?;
            item.parent.map_or(Ok(()), check_key)?;
            let slot = self.reservation(session, item.handle)?;
            if !seen.0.insert(item.key) || !seen.1.insert(slot) {
                return Err(CallError::Twice { index });
            }
            slots.push(slot);
        }
        let namespace = self.sessions.get(session).namespace;
        let batch = self.next_batch();
        // The last key first: the end of a prefix is evicted before its start.
        for (item, &slot) in items.iter().zip(&slots).rev() {
            let CommitItem { handle, key, parent, checksum, priority, data_type, ttl_ms } = *item;
            let expires_at = if ttl_ms == 0 { 0 } else { now.saturating_add(ttl_ms).max(1) };
            let priority = priority.min(PRIORITIES as u8 - 1);
            let parent = parent.map_or(0, |parent| self.hash_of_key(namespace, parent));
            let what = Committing {
                key,
                namespace,
                priority,
                data_type,
                checksum,
                batch,
                expires_at,
                parent,
            };
            self.entry(slot).set_used_at(now);
            self.set_order(slot);
            self.entry(slot).prepare(handle.generation, &what);
        }
        // From here on a recovery completes the batch.
        announce(&self.memory.header_cell().committing, batch);
        self.chains.begin_linking(items.len());
        for (item, &slot) in items.iter().zip(&slots).rev() {
            self.entry(slot).commit(self.word(slot));
            self.entry(slot).remove_user(session.number());
            self.supersede(namespace, item.key);
            if let Some(old) = self.find(namespace, item.key) {
                self.withdraw(old, EventKind::Replaced);
            }
            let space = self.space_of(slot);
            self.sessions.remove_reservation(session, slot, space);
            self.locals[slot as usize].is_unused = true;
            self.enter(slot, |node| {
                item.parent.is_some_and(|it| node.is_only_in_tier(namespace, it))
            });
            self.events.add(EventKind::Stored, namespace, item.key);
        }
        announce(&self.memory.header_cell().committing, 0);
        self.counters.committed += items.len() as u64;
        Ok(())
    }

    /// Returns whether all items of a batch have been committed as they are.
    fn is_committed(&self, session: SessionIndex, items: &[CommitItem<'_>]) -> bool {
        let namespace = self.sessions.get(session).namespace;
        !items.is_empty()
            && items.iter().all(|item| {
                self.live(item.handle).is_ok_and(|(slot, word)| {
                    matches!(word.state, State::Committed | State::Detached)
                        && self.entry(slot).has_key(namespace, item.key)
                        && self.entry(slot).checksum() == item.checksum
                })
            })
    }
}

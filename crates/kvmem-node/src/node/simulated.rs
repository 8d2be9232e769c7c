//! Views of a node for the [simulator](crate::simulator).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use super::node::Node;
use super::recover::may_live;
use super::{NodeMemory, NodeOptions, RecoveryReport};
use crate::error::NodeError;

/// A value that can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundValue {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) batch: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Values by namespace and key.
pub(crate) type FoundValues = BTreeMap<(u16, Vec<u8>), FoundValue>;

/// The grants of a session that are not over, as entries and their uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Granting {
    pub(crate) token: u64,
    pub(crate) epoch: u64,
    pub(crate) pins: BTreeSet<(u32, u32)>,
    pub(crate) reservations: BTreeSet<(u32, u32)>,
    /// Whether a process has its lock.
    pub(crate) lives: bool,
}

impl Node {
    pub(crate) fn found_values(&self) -> FoundValues {
        let slots = self.committed_slots();
        let value = |slot: u32| {
            let (entry, word) = (self.entry(slot), self.word(slot));
            let key = entry.key()[..word.key_len.into()].to_vec();
            let extent = entry.extent();
            let value = FoundValue {
                slot,
                generation: word.generation,
                batch: entry.batch(),
                offset: extent.start,
                len: extent.end - extent.start,
            };
            ((entry.namespace(), key), value)
        };
        slots.map(value).collect()
    }

    /// Returns the first word of the bytes at an offset.
    pub(crate) fn first_word(&self, offset: u64) -> u64 {
        assert!(offset + 8 <= self.memory.header.memory_len, "offset {offset}");
        // SAFETY: the word lies in the region, as was just checked, and its bytes are read as such.
        unsafe {
            let first = self.memory.bytes.base().as_ptr().add(offset as usize);
            first.cast::<u64>().read_unaligned()
        }
    }

    /// Returns the grants of all sessions that do not end. Without `look`, no client lives: whether
    /// one does is a system call.
    pub(crate) fn granting(&self, look: bool) -> Vec<Granting> {
        let granting = |(session, it): (super::SessionIndex, &super::sessions::Session)| Granting {
            token: it.token,
            epoch: it.epoch,
            pins: it
                .pins
                .iter()
                .filter(|(_, pin)| !pin.is_over())
                .map(|(slot, _)| (*slot, self.entry(*slot).generation()))
                .collect(),
            reservations: it
                .reservations
                .keys()
                .filter(|slot| it.has_reserved(**slot))
                .map(|slot| (*slot, self.entry(*slot).generation()))
                .collect(),
            lives: look && self.may_live(session),
        };
        self.sessions.all().filter(|(_, it)| !it.ends()).map(granting).collect()
    }

    /// Returns the number of sessions, also of those that end.
    pub(crate) fn sessions_left(&self) -> usize {
        self.sessions.all().count()
    }

    pub(crate) fn batches(&self) -> u64 {
        self.memory.header_cell().next_batch.load(Ordering::Relaxed)
    }

    /// Recovers memory whose sessions live as `lives` says of their tokens.
    pub(crate) fn recover_simulated(
        memory: NodeMemory,
        options: NodeOptions,
        lives: impl Fn(u64) -> bool,
    ) -> Result<(Node, RecoveryReport), NodeError> {
        Node::recover_memory(memory, options, |_, record| lives(record.token))
    }

    /// Recovers memory as [`Node::recover`] does.
    pub(crate) fn recover_mapped(
        memory: NodeMemory,
        options: NodeOptions,
    ) -> Result<(Node, RecoveryReport), NodeError> {
        Node::recover_memory(memory, options, may_live)
    }

    pub(crate) fn into_memory(self) -> NodeMemory {
        self.memory
    }
}

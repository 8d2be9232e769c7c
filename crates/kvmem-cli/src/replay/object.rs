//! *Object*: one part of a block, under which it is held.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use crate::ops::recorder::Ticket;

/// Which object: the block's hash id, and the object's number within the block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ObjectId {
    /// The block's hash id.
    pub block: u64,
    /// From 0, in the order of the layout.
    pub number: u32,
}

/// What an object is held under: its id, and what has to go when the object goes.
pub struct Key<H = ()> {
    id: ObjectId,
    /// Goes first: a free is written down before it is done.
    ticket: OnceLock<Ticket>,
    /// The object's place, if that is not the cache's.
    pub(super) place: H,
}

impl<H> Key<H> {
    /// The key of an object at a place of its own.
    pub fn new(id: ObjectId, place: H) -> Self {
        Key { id, ticket: OnceLock::new(), place }
    }

    /// Answers for the range from now on.
    pub fn answer_for(&self, ticket: Option<Ticket>) {
        if let Some(ticket) = ticket {
            // A key is given one ticket only.
            let _ = self.ticket.set(ticket);
        }
    }
}

impl<H> Borrow<ObjectId> for Key<H> {
    fn borrow(&self) -> &ObjectId {
        &self.id
    }
}

impl<H> Hash for Key<H> {
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.id.hash(state);
    }
}

impl<H> PartialEq for Key<H> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl<H> Eq for Key<H> {}

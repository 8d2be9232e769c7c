//! *Key* of an object: its id, with what must be dropped together with the object.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use kvmem_cli::workload::object::ObjectId;

use crate::ops::recorder::Ticket;

/// The key of an object: its id, with what must be dropped together with the object.
pub struct Key<H = ()> {
    id: ObjectId,
    /// Dropped first: a free is recorded before it happens.
    ticket: OnceLock<Ticket>,
    /// The object's range, if another allocator placed it.
    pub(super) place: H,
}

impl<H> Key<H> {
    /// Makes the key of an object that another allocator placed.
    pub fn new(id: ObjectId, place: H) -> Self {
        Key { id, ticket: OnceLock::new(), place }
    }

    /// Returns the id.
    pub(super) fn id(&self) -> ObjectId {
        self.id
    }

    /// Takes over the range of the last call.
    pub fn answer_for(&self, ticket: Option<Ticket>) {
        if let Some(ticket) = ticket {
            // A key gets one ticket only.
            let _ = self.ticket.set(ticket);
        }
    }
}

/// The clone names the same object, and answers for no range.
impl Clone for Key {
    fn clone(&self) -> Self {
        Key::new(self.id, ())
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

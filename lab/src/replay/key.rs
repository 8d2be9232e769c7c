//! *Keys* of a replay: those of its cache and of its tier.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};

use kvmem_cli::workload::object::ObjectId;

/// The key of an object: its id.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub ObjectId);

impl Borrow<ObjectId> for Key {
    fn borrow(&self) -> &ObjectId {
        &self.0
    }
}

impl Hash for Key {
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.0.hash(state);
    }
}

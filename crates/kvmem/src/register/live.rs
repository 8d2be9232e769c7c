//! *Live keys*: what a registrar has given and not got back.
//!
//! A C library takes a key back by a pointer or an address, and trusts it: a wrong one is a crash,
//! or takes away what belongs to somebody else. So a registrar over such a library knows its keys,
//! and passes on only those.
//!
//! A key is known as a whole. Libraries use addresses again; a key that was given back does not
//! come to life when a new one happens to have its handle. It would have to have the same lkey and
//! rkey too, and then it is the same right.

use std::collections::HashSet;
use std::fmt;

use super::{Key, RegistrarError};
use crate::arena::Errno;
use crate::sync::Mutex;

/// The keys of one registrar.
pub(super) struct Live(Mutex<HashSet<Key>>);

impl Live {
    /// None yet.
    pub(super) fn new() -> Live {
        Live(Mutex::new(HashSet::new()))
    }

    /// One that was given just now.
    pub(super) fn give(&self, key: Key) -> Key {
        self.0.lock().insert(key);
        key
    }

    /// Whether this one is live.
    pub(super) fn has(&self, key: Key) -> bool {
        self.0.lock().contains(&key)
    }

    /// Takes one back by `how`, which is asked only if the key is live, and once, whatever other
    /// threads do. If it refuses the key is live again.
    pub(super) fn take(
        &self,
        key: Key,
        call: &'static str,
        how: impl FnOnce() -> Result<(), RegistrarError>,
    ) -> Result<(), RegistrarError> {
        // Not live while `how` is at work: the library may give the same handle to somebody before
        // `how` returns.
        if !self.0.lock().remove(&key) {
            return Err(RegistrarError::new(
                call,
                Errno::ENOENT,
                "give back a key once, and to the registrar that has given it",
            )
            .detail(format!(
                "no live key has handle {:#x} and lkey {:#x}; the library was not asked",
                key.handle, key.lkey
            )));
        }
        let taken = how();
        if taken.is_err() {
            self.give(key);
        }
        taken
    }

    /// All that are left.
    pub(super) fn all(&self) -> Vec<Key> {
        self.0.lock().iter().copied().collect()
    }

    /// How many.
    pub(super) fn len(&self) -> u64 {
        self.0.lock().len() as u64
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.len())
    }
}

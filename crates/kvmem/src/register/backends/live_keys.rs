//! *Live keys*: the keys of one registrar that are registered.
//!
//! A C library deregisters a key by a pointer or an address, and trusts it: a wrong one crashes the
//! process or removes the registration of another owner. A registrar over such a library therefore
//! records its keys, and passes on only those.
//!
//! Keys are compared as a whole. Libraries reuse addresses: a deregistered key does not become live
//! when a new key has the same handle. Only a key with the same lkey and rkey matches too, and that
//! is the same right.

use std::collections::HashSet;
use std::fmt;

use crate::arena::Errno;
use crate::register::registrar::DEREGISTER_ATTEMPTS;
use crate::register::{Key, RegistrarError};
use crate::sync::Mutex;

/// The live keys of one registrar.
pub(super) struct LiveKeys(Mutex<HashSet<Key>>);

impl LiveKeys {
    /// Returns an empty set.
    pub(super) fn new() -> LiveKeys {
        LiveKeys(Mutex::new(HashSet::new()))
    }

    /// Adds a key that the library has just issued.
    pub(super) fn insert(&self, key: Key) -> Key {
        self.0.lock().insert(key);
        key
    }

    /// Returns whether this key is live.
    pub(super) fn contains(&self, key: Key) -> bool {
        self.0.lock().contains(&key)
    }

    /// Deregisters a key by calling `deregister`, but only if the key is live, and only once even
    /// if several threads try. If the call fails, the key becomes live again.
    pub(super) fn remove_with(
        &self,
        key: Key,
        call: &'static str,
        deregister: impl FnOnce() -> Result<(), RegistrarError>,
    ) -> Result<(), RegistrarError> {
        // The key is not live during the call: the library may issue the same handle to another
        // thread before the call returns.
        if !self.0.lock().remove(&key) {
            return Err(RegistrarError::new(
                call,
                Errno::ENOENT,
                "deregister a key once, and with the registrar that issued it",
            )
            .detail(format!(
                "no live key has handle {:#x} and lkey {:#x}; the library was not called",
                key.handle, key.lkey
            )));
        }
        let result = deregister();
        if result.is_err() {
            self.insert(key);
        }
        result
    }

    /// Deregisters all live keys by calling `deregister`, each in several attempts. Returns whether
    /// none is left.
    pub(super) fn remove_all(
        &self,
        deregister: impl Fn(Key) -> Result<(), RegistrarError>,
    ) -> bool {
        for _ in 0..DEREGISTER_ATTEMPTS {
            let keys: Vec<Key> = self.0.lock().iter().copied().collect();
            for key in keys {
                // The next attempt repeats the calls that fail.
                let _ = deregister(key);
            }
        }
        self.len() == 0
    }

    /// Returns the number of live keys.
    pub(super) fn len(&self) -> u64 {
        self.0.lock().len() as u64
    }
}

impl fmt::Debug for LiveKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.len())
    }
}

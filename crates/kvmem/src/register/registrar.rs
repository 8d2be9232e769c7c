//! *Registrar*: one DMA consumer, and the keys that it issues.

use std::fmt;
use std::ptr::NonNull;

use serde::{Deserialize, Serialize};

use super::error::RegistrarError;
use super::limits::Limits;

/// The number of attempts to deregister a key if no later call can repeat the attempt.
pub(super) const DEREGISTER_ATTEMPTS: usize = 3;

/// One DMA consumer of memory: a NIC's protection domain, a ring, a GPU.
///
/// Registering pins the pages and returns a key. The device may then read and write them by that
/// key until the key is deregistered. A registrar does not have to record the keys that it issued:
/// [`Registration`](super::Registration) records them. It calls
/// [`register`](Registrar::register) and [`deregister`](Registrar::deregister) from one thread at a
/// time, though not always from the same one. Different registrars of a process are called
/// concurrently.
pub trait Registrar: fmt::Debug + Send + Sync {
    /// Returns the registrar's name, such as `io_uring:0`, `mlx5_0` or `cuda:0`. Registrars that
    /// register the same region have different names.
    fn name(&self) -> &str;

    /// Returns the registrar's limits. Called once for each plan.
    fn limits(&self) -> Limits;

    /// Pins `len` bytes at `at` and returns the key to them. On failure nothing stays pinned.
    ///
    /// # Errors
    /// [`RegistrarError`]: the call that failed, why, which limit was hit, and what to do.
    ///
    /// # Safety
    /// The bytes are mapped for reading and writing. They stay mapped, at the same pages, until
    /// [`deregister`](Registrar::deregister) has succeeded for the key. A caller that passes this
    /// key to the device is responsible for what the device writes.
    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError>;

    /// Deregisters a key: the device cannot reach its bytes any more.
    ///
    /// # Errors
    /// [`RegistrarError`]; the key stays valid, and its bytes must stay mapped. A key that is not
    /// valid returns `EINVAL` or `ENOENT` and has no other effect.
    fn deregister(&self, key: Key) -> Result<(), RegistrarError>;

    /// Deregisters several keys and returns the results in the order of the keys. The failure of
    /// one key does not stop the others. This default implementation calls
    /// [`deregister`](Registrar::deregister) for each key; a registrar whose device takes several
    /// keys in one call should override it.
    fn deregister_all(&self, keys: &[Key]) -> Vec<Result<(), RegistrarError>> {
        keys.iter().map(|key| self.deregister(*key)).collect()
    }
}

/// The right to DMA into a range of bytes.
///
/// The fields are named as in verbs. Other consumers use one of them or none; their types document
/// which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The registrar's own identifier: the index of a fixed buffer, a pointer to a memory region,
    /// an address.
    pub handle: u64,
    /// The value for local work requests: the lkey; the `buf_index` of a ring; the address on a
    /// GPU; 0 if the device needs none.
    pub lkey: u64,
    /// The value for remote peers, if the device has any: the rkey.
    pub rkey: Option<u32>,
}

//! *Registrar*: one DMA consumer, its limits, and the keys that it issues.

use std::fmt;
use std::ptr::NonNull;

use serde::{Deserialize, Serialize};

use super::RegistrarError;

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

/// A registrar's limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The registrar's [`name`](Registrar::name).
    pub device: String,
    /// The largest number of bytes that one key can cover.
    pub max_bytes: u64,
    /// The number of further keys that the registrar can issue.
    pub max_keys: u64,
    /// The chunk length in bytes at which registering is fastest, if many keys cost nothing;
    /// `None`: fewer keys are better.
    pub preferred_chunk_bytes: Option<u64>,
    /// The limit on pinned bytes that applies to this registrar; `None`: no known limit.
    pub memlock: Option<Memlock>,
}

impl Limits {
    /// Returns the limits of a registrar that has none.
    #[must_use]
    pub fn none(device: impl Into<String>) -> Limits {
        Limits {
            device: device.into(),
            max_bytes: u64::MAX,
            max_keys: u64::MAX,
            preferred_chunk_bytes: None,
            memlock: None,
        }
    }
}

/// `RLIMIT_MEMLOCK` as it applies to one registrar. The limit is off with `CAP_IPC_LOCK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memlock {
    /// The account to which the kernel charges the bytes.
    pub account: Account,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Bytes already charged when the limit was read, as far as the kernel reports them.
    pub used_bytes: u64,
}

/// An account of bytes that the kernel compares with `RLIMIT_MEMLOCK`. The kernel keeps three
/// accounts and limits each separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Account {
    /// Bytes pinned by the rings of this user, in all processes. The kernel does not report this
    /// number.
    Rings,
    /// Bytes pinned by RDMA drivers for this process (`VmPin`).
    Pinned,
    /// Bytes locked by this process (`VmLck`).
    Locked,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Account::Rings => "pinned by rings of this user",
            Account::Pinned => "pinned by this process",
            Account::Locked => "locked by this process",
        })
    }
}

//! *Registrar*: one DMA consumer, what it can take, and the keys that it gives.

use std::fmt;
use std::ptr::NonNull;

use serde::{Deserialize, Serialize};

use super::RegistrarError;

/// One consumer of memory: a NIC's protection domain, a ring, a GPU.
///
/// Registering pins the pages and gives a key; the device may then read and write them by that key,
/// until the key has been given back. A registrar keeps no books of what it has given out:
/// [`Registration`](super::Registration) does, and calls [`register`](Registrar::register) and
/// [`deregister`](Registrar::deregister) from one thread at a time, though not always the same one.
/// Registrars of one process are called side by side.
pub trait Registrar: fmt::Debug + Send + Sync {
    /// What it is called, such as `io_uring:0`, `mlx5_0`, `cuda:0`. Of those that register one
    /// region no two are called the same.
    fn name(&self) -> &str;

    /// What it can take. Asked once for each plan.
    fn limits(&self) -> Limits;

    /// Pins `len` bytes at `at` and gives the key to them, or refuses and leaves nothing pinned.
    ///
    /// # Errors
    /// [`RegistrarError`]: the call that was refused, why, which limit was hit, and what to do.
    ///
    /// # Safety
    /// The bytes are mapped for reading and writing, and stay mapped, at the same pages, until the
    /// key has been given to [`deregister`](Registrar::deregister) and was taken. Whoever gives
    /// the device work with this key answers for what it writes.
    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError>;

    /// Takes a key back: after that the device cannot reach the bytes any more.
    ///
    /// # Errors
    /// [`RegistrarError`]; the key stands then, and the bytes must stay mapped. A key that does not stand
    /// is refused with `EINVAL` or `ENOENT`, and harms nothing.
    fn deregister(&self, key: Key) -> Result<(), RegistrarError>;

    /// Takes several keys back; the answers are in the order of the keys. One that is refused keeps
    /// no other from being taken. A registrar that can take several in one call does better
    /// than this, which calls [`deregister`](Registrar::deregister) for each.
    fn deregister_all(&self, keys: &[Key]) -> Vec<Result<(), RegistrarError>> {
        keys.iter().map(|key| self.deregister(*key)).collect()
    }
}

/// The right to DMA into a range of bytes.
///
/// The names are those of verbs. Other consumers have one of them or none; what they have is said
/// with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key {
    /// By what its registrar knows it: the index of a fixed buffer, a pointer to a memory region,
    /// an address.
    pub handle: u64,
    /// What local work requests say: the lkey; the `buf_index` of a ring; the address on a GPU; 0
    /// where nothing is said.
    pub lkey: u64,
    /// What a remote peer says, where there is one: the rkey.
    pub rkey: Option<u32>,
}

/// What a registrar can take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The registrar's [`name`](Registrar::name).
    pub device: String,
    /// The most bytes that one key can cover.
    pub max_bytes: u64,
    /// How many more keys it can give.
    pub max_keys: u64,
    /// Bytes for a key at which registering is quickest, where many keys cost nothing; `None`: the
    /// fewer keys the better.
    pub preferred_chunk_bytes: Option<u64>,
    /// The limit on pinned bytes that holds for it; `None`: no limit that is known.
    pub memlock: Option<Memlock>,
}

impl Limits {
    /// A registrar without limits.
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

/// `RLIMIT_MEMLOCK`, as it holds for one registrar. It does not hold with `CAP_IPC_LOCK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memlock {
    /// Whose bytes are counted together.
    pub account: Account,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Bytes that were counted already when it was asked, as far as the kernel tells.
    pub used_bytes: u64,
}

/// What the kernel counts together against `RLIMIT_MEMLOCK`: it counts three things, each by
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Account {
    /// What rings of this user have pinned, in all processes. The kernel does not tell how much
    /// that is.
    Rings,
    /// What RDMA drivers have pinned for this process (`VmPin`).
    Pinned,
    /// What this process has locked (`VmLck`).
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

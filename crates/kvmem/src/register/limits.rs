//! *Limits*: what a registrar can take, and the limit that a request exceeds.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A registrar's limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The registrar's [`name`](super::Registrar::name).
    pub device: String,
    /// The largest number of bytes that one key can cover.
    pub max_bytes: u64,
    /// The number of further keys that the registrar can issue.
    pub max_keys: u64,
    /// The chunk length in bytes that serves best, if many keys cost nothing: registering is
    /// fastest with it, or holds others up least. `None`: fewer keys are better.
    pub preferred_chunk_bytes: Option<u64>,
    /// Whether transfers name memory by its address, without a key. A transfer then fails if its
    /// range lies in two keys, and the caller never meets the key that would say so. Such a
    /// registrar gets one key for the whole region, unless the caller sets the length of the
    /// chunks and lets no transfer cross an edge between two of them.
    #[serde(default)]
    pub copies_by_address: bool,
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
            copies_by_address: false,
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

impl Memlock {
    /// Returns the bytes that are not charged yet.
    pub(super) fn remaining_bytes(self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }

    /// Returns the limit as the reason why `need_bytes` more bytes cannot be charged.
    pub(super) fn exceeded(self, need_bytes: u64) -> RegisterLimit {
        let Memlock { account, limit_bytes, used_bytes } = self;
        RegisterLimit::Memlock { account, limit_bytes, used_bytes, need_bytes }
    }
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

/// A limit that prevents registering.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RegisterLimit {
    /// `RLIMIT_MEMLOCK`, without `CAP_IPC_LOCK`.
    Memlock {
        /// The account to which the kernel charges the bytes.
        account: Account,
        /// The limit in bytes.
        limit_bytes: u64,
        /// Bytes charged before this request, as far as the kernel reports them.
        used_bytes: u64,
        /// Bytes of this request.
        need_bytes: u64,
    },
    /// The largest number of bytes that one key can cover.
    KeyBytes {
        /// The limit in bytes.
        limit_bytes: u64,
        /// Bytes requested.
        need_bytes: u64,
    },
    /// The number of keys that the device can issue.
    Keys {
        /// Keys that it can still issue.
        limit: u64,
        /// Keys requested.
        need: u64,
    },
    /// The number of descriptors that the process may have open (`RLIMIT_NOFILE`).
    Descriptors,
}

impl RegisterLimit {
    /// Returns what to do about this limit.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            RegisterLimit::Memlock { account, limit_bytes, used_bytes, need_bytes } => {
                // A call that fails below the limit met bytes that the kernel does not report:
                // rings of other processes, and the memory of the ring itself. An unknown part of
                // the limit is then used up.
                let known = need_bytes.saturating_add(*used_bytes);
                let bytes = if known > *limit_bytes {
                    known
                } else {
                    limit_bytes.saturating_add(*need_bytes)
                };
                let kib = bytes.div_ceil(1024);
                let unknown = match account {
                    Account::Rings if known <= *limit_bytes => {
                        ", because rings charge their own memory too, and rings of other processes \
                         of this user count as well,"
                    }
                    _ => "",
                };
                format!(
                    "raise it to {kib} KiB or more{unknown} (`ulimit -l unlimited` in the shell, \
                     `memlock` in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd \
                     unit, --ulimit memlock=-1 for a container), or give the process CAP_IPC_LOCK"
                )
            }
            RegisterLimit::KeyBytes { .. } => {
                "register it in smaller chunks, and transfer no range that lies in two of them"
                    .to_owned()
            }
            RegisterLimit::Keys { .. } => {
                "use larger chunks or fewer regions, or deregister keys that are not needed"
                    .to_owned()
            }
            RegisterLimit::Descriptors => {
                "raise RLIMIT_NOFILE (`ulimit -n`), or close files that are not needed".to_owned()
            }
        }
    }
}

impl fmt::Display for RegisterLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterLimit::Memlock { account, limit_bytes, used_bytes, need_bytes } => write!(
                f,
                "RLIMIT_MEMLOCK is {limit_bytes} bytes, of which {used_bytes} are known to be \
                 {account}, and {need_bytes} more are needed"
            ),
            RegisterLimit::KeyBytes { limit_bytes, need_bytes } => {
                write!(f, "one key covers at most {limit_bytes} bytes, and {need_bytes} are needed")
            }
            RegisterLimit::Keys { limit, need } => {
                write!(f, "the device can issue {limit} more keys, and {need} are needed")
            }
            RegisterLimit::Descriptors => f.write_str("the process has no free file descriptor"),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_raises_the_limit_above_its_value() {
        for account in [Account::Rings, Account::Pinned, Account::Locked] {
            for (limit_bytes, used_bytes, need_bytes) in [
                (65536, 0, 65536),
                (65536, 4096, 1),
                (0, 0, 4096),
                (8 << 20, 8 << 20, 1 << 30),
                (1 << 20, 0, 0),
            ] {
                let remedy =
                    RegisterLimit::Memlock { account, limit_bytes, used_bytes, need_bytes }
                        .remedy();
                let kib: u64 = remedy
                    .strip_prefix("raise it to ")
                    .and_then(|rest| rest.split(' ').next()?.parse().ok())
                    .expect("a number of KiB");
                assert!(kib << 10 >= limit_bytes + need_bytes.min(1), "{remedy}");
                assert!(kib << 10 >= used_bytes + need_bytes, "{remedy}");
            }
        }
        let (limit_bytes, used_bytes, need_bytes) = (65536, 0, 65536);
        let remedy =
            RegisterLimit::Memlock { account: Account::Rings, limit_bytes, used_bytes, need_bytes }
                .remedy();
        assert!(remedy.starts_with("raise it to 128 KiB or more, because rings"), "{remedy}");
    }
}

//! *Errors*: why something could not be registered, with the numbers in it and the way out.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Account;
use crate::arena::{ArenaError, Errno};

/// Why a registrar did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("{call}: {errno}{}{}", Detail(detail), Tail(exceeded, remedy))]
pub struct RegistrarError {
    /// The call that was refused, by its name in C.
    pub call: Cow<'static, str>,
    /// Why. Of libraries with numbers of their own: the nearest there is, with theirs in `detail`.
    pub errno: Errno,
    /// What the library says of it, such as `CUDA_ERROR_OUT_OF_MEMORY (2)`.
    pub detail: Option<String>,
    /// The limit that was hit, if it is known.
    pub exceeded: Option<RegisterLimit>,
    /// What to do, where that is not said by the limit.
    pub remedy: Cow<'static, str>,
}

impl RegistrarError {
    /// A refusal of which nothing more is known than its number, and what can be done then.
    pub fn new(
        call: impl Into<Cow<'static, str>>,
        errno: Errno,
        remedy: impl Into<Cow<'static, str>>,
    ) -> RegistrarError {
        RegistrarError {
            call: call.into(),
            errno,
            detail: None,
            exceeded: None,
            remedy: remedy.into(),
        }
    }

    /// The same, with what the library says.
    #[must_use]
    pub fn detail(self, detail: impl Into<String>) -> RegistrarError {
        RegistrarError { detail: Some(detail.into()), ..self }
    }

    /// The same, with the limit that was hit.
    #[must_use]
    pub fn exceeded(self, exceeded: impl Into<Option<RegisterLimit>>) -> RegistrarError {
        RegistrarError { exceeded: exceeded.into(), ..self }
    }
}

/// A limit that stands in the way of registering.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RegisterLimit {
    /// `RLIMIT_MEMLOCK`, without `CAP_IPC_LOCK`.
    Memlock {
        /// Whose bytes are counted together.
        account: Account,
        /// The limit in bytes.
        limit_bytes: u64,
        /// Bytes counted before this request, as far as the kernel tells.
        used_bytes: u64,
        /// Bytes that were to come.
        need_bytes: u64,
    },
    /// The most bytes that one key can cover.
    KeyBytes {
        /// The limit in bytes.
        limit_bytes: u64,
        /// Bytes wanted.
        need_bytes: u64,
    },
    /// The number of keys that the device can give.
    Keys {
        /// Keys it can still give.
        limit: u64,
        /// Keys wanted.
        need: u64,
    },
    /// Descriptors that the process may have open (`RLIMIT_NOFILE`).
    Descriptors,
}

impl RegisterLimit {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            RegisterLimit::Memlock { account, limit_bytes, used_bytes, need_bytes } => {
                // What the kernel refused below the limit met bytes that it does not tell: rings of
                // other processes, and the memory of the ring itself. The limit that it had is then
                // used up to an unknown part.
                let told = need_bytes.saturating_add(*used_bytes);
                let bytes = if told > *limit_bytes {
                    told
                } else {
                    limit_bytes.saturating_add(*need_bytes)
                };
                let kib = bytes.div_ceil(1024);
                let untold = match account {
                    Account::Rings if told <= *limit_bytes => {
                        ", since rings count for memory of their own, and those of other processes of this user count too,"
                    }
                    _ => "",
                };
                format!(
                    "raise it to {kib} KiB or more{untold} (`ulimit -l unlimited` in the shell, `memlock` in \
                     /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 for a container), \
                     or give the process CAP_IPC_LOCK"
                )
            }
            RegisterLimit::KeyBytes { .. } => "register it in smaller chunks".to_owned(),
            RegisterLimit::Keys { .. } => {
                "use larger chunks or fewer regions, or give back keys that are not needed"
                    .to_owned()
            }
            RegisterLimit::Descriptors => {
                "raise RLIMIT_NOFILE (`ulimit -n`), or close what is not needed".to_owned()
            }
        }
    }
}

impl fmt::Display for RegisterLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterLimit::Memlock { account, limit_bytes, used_bytes, need_bytes } => write!(
                f,
                "RLIMIT_MEMLOCK is {limit_bytes} bytes, of which {used_bytes} are known to be {account}, and {need_bytes} more \
                 are needed"
            ),
            RegisterLimit::KeyBytes { limit_bytes, need_bytes } => {
                write!(f, "one key can cover {limit_bytes} bytes, wanted are {need_bytes}")
            }
            RegisterLimit::Keys { limit, need } => {
                write!(f, "the device can give {limit} more keys, wanted are {need}")
            }
            RegisterLimit::Descriptors => f.write_str("the process has no descriptor left"),
        }
    }
}

/// " (what the library says)", or nothing.
struct Detail<'a>(&'a Option<String>);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |detail| write!(f, " ({detail})"))
    }
}

/// "; the limit: its remedy", or "; the remedy", or nothing.
struct Tail<'a>(&'a Option<RegisterLimit>, &'a str);

impl fmt::Display for Tail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Some(exceeded), _) => write!(f, "; {exceeded}: {}", exceeded.remedy()),
            (None, "") => Ok(()),
            (None, remedy) => write!(f, "; {remedy}"),
        }
    }
}

/// A backend that cannot be used here, and what it would need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("{backend} is not available: {reason}; {remedy}")]
pub struct NotAvailable {
    /// The backend: `io_uring`, `verbs`, …
    pub backend: Cow<'static, str>,
    /// What is not there, or what was refused.
    pub reason: String,
    /// What to do.
    pub remedy: Cow<'static, str>,
}

impl NotAvailable {
    /// This backend, for this reason.
    pub fn new(
        backend: impl Into<Cow<'static, str>>,
        reason: impl Into<String>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> NotAvailable {
        NotAvailable { backend: backend.into(), reason: reason.into(), remedy: remedy.into() }
    }
}

/// A call for one chunk that failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{device}, chunk {chunk} (offsets {}..{}): {refusal}", range.start, range.end)]
pub struct ChunkError {
    /// The registrar.
    pub device: String,
    /// The number of the chunk among those of this registrar and region, from 0.
    pub chunk: usize,
    /// The chunk, as offsets into the region.
    pub range: Range<usize>,
    /// What was refused.
    pub refusal: RegistrarError,
}

/// Why a region could not be registered, or a registration not be used as asked.
///
/// When registering fails nothing is registered, and the region is as it was, except that some of
/// its pages may have become resident.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Nobody to register with.
    #[error("no registrar was named: name at least one")]
    NoRegistrars,
    /// No bytes to register.
    #[error("the region has no bytes: there is nothing to register")]
    Empty,
    /// Two registrars of one name could not be told apart.
    #[error(
        "two registrars are called {device}: keys are asked for by name, so give each a name of its own"
    )]
    SameName {
        /// The name.
        device: String,
    },
    /// What the registrar allows is not enough for the region.
    #[error("{device} cannot take the region: {exceeded}: {}", exceeded.remedy())]
    Limited {
        /// The registrar, or all that share the limit.
        device: String,
        /// The limit.
        exceeded: RegisterLimit,
    },
    /// A chunk was refused. All that had been registered has been given back.
    #[error("{error}{}", DeregisterFailed(kept))]
    Refused {
        /// The first chunk that failed.
        error: Box<ChunkError>,
        /// Chunks that could not be given back, tried three times. Their memory stays mapped for
        /// the life of the process.
        kept: Vec<ChunkError>,
    },
    /// Keys could not be given back, tried three times. The memory stays mapped: a device can still
    /// write to it.
    #[error("{} keys could not be given back, so the memory stays mapped; the first: {}", kept.len(), First(kept))]
    DeregisterFailed {
        /// What failed, at least one.
        kept: Vec<ChunkError>,
    },
    /// No thread could be started.
    #[error(
        "no thread could be started: {errno}; raise RLIMIT_NPROC or the pids limit of the cgroup"
    )]
    NoThread {
        /// Why.
        errno: Errno,
    },
    /// Pages could not be made resident before they were registered.
    #[error("the region could not be populated before registering: {0}")]
    Populate(#[from] ArenaError),
    /// [`CancelToken::cancel`](crate::arena::CancelToken::cancel) was called. All that had been registered
    /// has been given back.
    #[error("cancelled with {done} of {total} bytes registered")]
    Cancelled {
        /// Bytes that had been registered, counted for each registrar.
        done: u64,
        /// Bytes that were to be.
        total: u64,
    },
    /// The time budget was used up. All that had been registered has been given back.
    #[error(
        "the time budget of {budget:?} was used up with {done} of {total} bytes registered: allow more time"
    )]
    OverBudget {
        /// The budget.
        budget: Duration,
        /// Bytes that had been registered, counted for each registrar.
        done: u64,
        /// Bytes that were to be.
        total: u64,
    },
    /// No registrar of this name.
    #[error("no registrar is called {device}: there are {}", have.join(", "))]
    NoSuchDevice {
        /// The name asked for.
        device: String,
        /// The names there are.
        have: Vec<String>,
    },
    /// A range that is not within the region, or not yet registered.
    #[error("{start}..{end} is not a range within the {len} bytes that are registered")]
    OutOfBounds {
        /// First offset.
        start: usize,
        /// One past the last offset.
        end: usize,
        /// Bytes registered, from the beginning.
        len: usize,
    },
    /// A range for which there is no single key.
    #[error(
        "offsets {start}..{end} straddle the edge of a chunk of {device} at {edge}: split the transfer there, or let the \
         allocator know the boundary so that it hands out no such range"
    )]
    Straddles {
        /// The registrar.
        device: String,
        /// First offset.
        start: usize,
        /// One past the last offset.
        end: usize,
        /// The first edge within.
        edge: usize,
    },
    /// The keys have been given back.
    #[error("the registration with {device} has ended: its keys have been given back")]
    Ended {
        /// The registrar.
        device: String,
    },
}

/// "; and this many keys could not be given back", or nothing.
struct DeregisterFailed<'a>(&'a [ChunkError]);

impl fmt::Display for DeregisterFailed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => Ok(()),
            [first, ..] => write!(
                f,
                "; {} keys given out before could not be given back, so the memory stays mapped; the first: {first}",
                self.0.len()
            ),
        }
    }
}

struct First<'a>(&'a [ChunkError]);

impl fmt::Display for First<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.first().map_or(Ok(()), |first| first.fmt(f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_never_to_be_raised_to_what_it_is() {
        for account in [Account::Rings, Account::Pinned, Account::Locked] {
            for (limit_bytes, used_bytes, need_bytes) in [
                (65536, 0, 65536),
                (65536, 4096, 1),
                (0, 0, 4096),
                (8 << 20, 8 << 20, 1 << 30),
                (1 << 20, 0, 0),
            ] {
                let told = RegisterLimit::Memlock { account, limit_bytes, used_bytes, need_bytes }
                    .remedy();
                let kib: u64 = told
                    .strip_prefix("raise it to ")
                    .and_then(|rest| rest.split(' ').next()?.parse().ok())
                    .expect("a number of KiB");
                assert!(kib << 10 >= limit_bytes + need_bytes.min(1), "{told}");
                assert!(kib << 10 >= used_bytes + need_bytes, "{told}");
            }
        }
        let (limit_bytes, used_bytes, need_bytes) = (65536, 0, 65536);
        let told =
            RegisterLimit::Memlock { account: Account::Rings, limit_bytes, used_bytes, need_bytes }
                .remedy();
        assert!(told.starts_with("raise it to 128 KiB or more, since rings count"), "{told}");
    }
}

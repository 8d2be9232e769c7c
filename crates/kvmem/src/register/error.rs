//! *Errors*: why registering failed, with the numbers involved and what to do.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::limits::RegisterLimit;
use crate::arena::{ArenaError, Errno};

/// The failure of a registrar's call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("{call}: {errno}{}{}", DetailSuffix(detail), RemedySuffix(exceeded, remedy))]
pub struct RegistrarError {
    /// The call that failed, by its name in C.
    pub call: Cow<'static, str>,
    /// The error number. Libraries with their own codes get the nearest errno; `detail` has
    /// theirs.
    pub errno: Errno,
    /// The library's own message, such as `CUDA_ERROR_OUT_OF_MEMORY (2)`.
    pub detail: Option<String>,
    /// The limit that was hit, if it is known.
    pub exceeded: Option<RegisterLimit>,
    /// What to do, if the limit does not say it.
    pub remedy: Cow<'static, str>,
}

impl RegistrarError {
    /// Returns an error of this call with a remedy, but without a detail or a limit.
    #[must_use]
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

    /// Returns the error with the library's own message.
    #[must_use]
    pub fn detail(self, detail: impl Into<String>) -> RegistrarError {
        RegistrarError { detail: Some(detail.into()), ..self }
    }

    /// Returns the error with the limit that was hit.
    #[must_use]
    pub fn exceeded(self, exceeded: impl Into<Option<RegisterLimit>>) -> RegistrarError {
        RegistrarError { exceeded: exceeded.into(), ..self }
    }
}

/// Writes " (the library's message)", or nothing.
struct DetailSuffix<'a>(&'a Option<String>);

impl fmt::Display for DetailSuffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |detail| write!(f, " ({detail})"))
    }
}

/// Writes "; the limit: its remedy", or "; the remedy", or nothing.
struct RemedySuffix<'a>(&'a Option<RegisterLimit>, &'a str);

impl fmt::Display for RemedySuffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Some(exceeded), _) => write!(f, "; {exceeded}: {}", exceeded.remedy()),
            (None, "") => Ok(()),
            (None, remedy) => write!(f, "; {remedy}"),
        }
    }
}

/// A backend that cannot be used on this machine, and what it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("{backend} is not available: {reason}; {remedy}")]
pub struct NotAvailable {
    /// The backend: `io_uring`, `verbs`, …
    pub backend: Cow<'static, str>,
    /// The missing thing, or the failed call.
    pub reason: String,
    /// What to do.
    pub remedy: Cow<'static, str>,
}

impl NotAvailable {
    /// Returns an error for this backend, with a reason and a remedy.
    #[must_use]
    pub fn new(
        backend: impl Into<Cow<'static, str>>,
        reason: impl Into<String>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> NotAvailable {
        NotAvailable { backend: backend.into(), reason: reason.into(), remedy: remedy.into() }
    }
}

/// A failed call for one chunk.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{device}, chunk {chunk} (offsets {}..{}): {cause}", range.start, range.end)]
pub struct ChunkError {
    /// The registrar.
    pub device: String,
    /// The index of the chunk among those of this registrar and region, from 0.
    pub chunk: usize,
    /// The chunk, as offsets into the region.
    pub range: Range<usize>,
    /// The failure.
    pub cause: RegistrarError,
}

/// An error of registering a region or of using a registration.
///
/// If registering fails, nothing is registered. The region is unchanged, except that some of its
/// pages may have become resident.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The builder has no registrars.
    #[error("no registrar was named: name at least one")]
    NoRegistrars,
    /// The region has no bytes.
    #[error("the region has no bytes: there is nothing to register")]
    Empty,
    /// Two registrars have the same name.
    #[error(
        "two registrars are called {device}: keys are looked up by name, so give each registrar a \
         different name"
    )]
    SameName {
        /// The name.
        device: String,
    },
    /// A registrar's limits are too small for the region.
    #[error("{device} cannot take the region: {exceeded}: {}", exceeded.remedy())]
    Limited {
        /// The registrar, or all registrars that share the limit.
        device: String,
        /// The limit.
        exceeded: RegisterLimit,
    },
    /// A chunk could not be registered. Everything registered before it was deregistered.
    #[error("{error}{}", StillRegistered(kept))]
    ChunkFailed {
        /// The first chunk that failed.
        error: Box<ChunkError>,
        /// Chunks that could not be deregistered in three attempts. Their memory stays mapped for
        /// the life of the process.
        kept: Vec<ChunkError>,
    },
    /// Keys could not be deregistered in three attempts. The memory stays mapped, because a device
    /// can still write to it.
    #[error(
        "{} keys could not be deregistered, so the memory stays mapped; the first: {}",
        kept.len(),
        FirstFailure(kept)
    )]
    DeregisterFailed {
        /// The failures, at least one.
        kept: Vec<ChunkError>,
    },
    /// No thread could be created.
    #[error(
        "no thread could be created: {errno}; raise RLIMIT_NPROC or the pids limit of the cgroup"
    )]
    NoThread {
        /// Why.
        errno: Errno,
    },
    /// Pages could not be made resident before they were registered.
    #[error("the region could not be populated before registering: {0}")]
    Populate(#[from] ArenaError),
    /// [`CancelToken::cancel`](crate::arena::CancelToken::cancel) was called. Everything registered
    /// before was deregistered.
    #[error("cancelled with {done} of {total} bytes registered")]
    Cancelled {
        /// Bytes registered before, counted once for each registrar.
        done: u64,
        /// Total bytes to register, counted once for each registrar.
        total: u64,
    },
    /// The time budget ran out. Everything registered before was deregistered.
    #[error(
        "the time budget of {budget:?} was used up with {done} of {total} bytes registered: allow \
         more time"
    )]
    OverBudget {
        /// The budget.
        budget: Duration,
        /// Bytes registered before, counted once for each registrar.
        done: u64,
        /// Total bytes to register, counted once for each registrar.
        total: u64,
    },
    /// No registrar has this name.
    #[error("no registrar is called {device}: there are {}", have.join(", "))]
    NoSuchDevice {
        /// The requested name.
        device: String,
        /// The names of the registrars.
        have: Vec<String>,
    },
    /// The range is not within the region, or is not registered yet.
    #[error("{start}..{end} is not a range within the {len} bytes that are registered")]
    OutOfBounds {
        /// First offset.
        start: usize,
        /// One past the last offset.
        end: usize,
        /// Bytes registered, from the beginning.
        len: usize,
    },
    /// No single key covers the range.
    #[error(
        "offsets {start}..{end} straddle the edge of a chunk of {device} at {edge}: split the \
         transfer there, or give the boundary to the allocator so that it returns no such range"
    )]
    Straddles {
        /// The registrar.
        device: String,
        /// First offset.
        start: usize,
        /// One past the last offset.
        end: usize,
        /// The first edge inside the range.
        edge: usize,
    },
    /// The keys were deregistered.
    #[error("the keys of the registration with {device} were deregistered: register it again")]
    Deregistered {
        /// The registrar.
        device: String,
    },
}

/// Writes "; N keys could not be deregistered …", or nothing.
struct StillRegistered<'a>(&'a [ChunkError]);

impl fmt::Display for StillRegistered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => Ok(()),
            [first, ..] => write!(
                f,
                "; {} keys registered before could not be deregistered, so the memory stays \
                 mapped; the first: {first}",
                self.0.len()
            ),
        }
    }
}

/// Writes the first failure.
struct FirstFailure<'a>(&'a [ChunkError]);

impl fmt::Display for FirstFailure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.first().map_or(Ok(()), |first| first.fmt(f))
    }
}

//! *Errors* of a memory holder and of its clients.

use std::io;

use serde::{Deserialize, Serialize};

/// Why a memory holder did not do what a client requested. Nothing changed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MemoryHolderCallError {
    /// The name is empty, too long, or has other characters.
    #[error(
        "a name of {len} bytes is not possible: names have 1 to {limit} of letters, digits, `.`, \
         `_` and `-`"
    )]
    BadName {
        /// Bytes of the name.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The name has descriptors already, which are not replaced.
    #[error(
        "the memory holder has descriptors under {name} already: set them aside, or forget them"
    )]
    NameInUse {
        /// The name.
        name: String,
    },
    /// The name has no descriptors.
    #[error("the memory holder has nothing under {name}")]
    Absent {
        /// The name.
        name: String,
    },
    /// Another connection has the sole use of the name.
    #[error("process {pid} uses {name}: stop that process first")]
    Claimed {
        /// The name.
        name: String,
        /// The process; 0: its number is not visible to the memory holder.
        pid: u32,
    },
    /// There are as many names as there can be.
    #[error("the memory holder has {limit} names already, and no more are possible: forget one")]
    TooManyNames {
        /// The limit.
        limit: usize,
    },
    /// A message came with another number of descriptors than it says.
    #[error("{got} descriptors came with the message: {expected} were announced, of 1 to {limit}")]
    Descriptors {
        /// The number that came.
        got: usize,
        /// The number that the message says.
        expected: usize,
        /// The limit.
        limit: usize,
    },
    /// The message cannot be decoded.
    #[error(
        "the message of {len} bytes cannot be decoded: use the memory holder of the same release"
    )]
    UndecodableMessage {
        /// Bytes of the message.
        len: usize,
    },
}

/// Why a memory holder cannot run, or why a call of its client failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryHolderError {
    /// The memory holder did not do it.
    #[error(transparent)]
    Call(#[from] MemoryHolderCallError),
    /// Another memory holder listens on the socket.
    #[error("a memory holder answers at {path} already: use it, or another --socket")]
    HolderInUse {
        /// The path of the socket.
        path: String,
    },
    /// Another program holds the lock of the socket's folder.
    #[error(
        "the folder of {path} has been locked for {waited_ms} ms by another program: use a folder \
         that only this user can read"
    )]
    Locked {
        /// The path of the socket.
        path: String,
        /// Milliseconds that the memory holder has tried.
        waited_ms: u64,
    },
    /// A process of another user listens on the socket.
    #[error(
        "user {uid} listens at {path}, and only this user and root may hold its memory: use \
         another folder"
    )]
    ForeignHolder {
        /// The path of the socket.
        path: String,
        /// The user.
        uid: u32,
    },
    /// No memory holder answers.
    #[error("no memory holder answers at {path}: {error}; start `kvmem holder`")]
    NoHolder {
        /// The path of the socket.
        path: String,
        /// Why not.
        error: io::Error,
    },
    /// The memory holder is of a release with another protocol.
    #[error(
        "the memory holder at {path} speaks version {version} of its protocol and this program \
         {known}: use the kvmem that started it, or end process {pid}, which drops the memory that \
         it holds"
    )]
    HolderVersion {
        /// The path of the socket.
        path: String,
        /// The process; 0: its number is not visible to this one.
        pid: u32,
        /// The memory holder's version.
        version: u8,
        /// The version of this program.
        known: u8,
    },
    /// The memory holder's answer is not one that the protocol allows.
    #[error("the memory holder's answer is not possible: {what}")]
    BadAnswer {
        /// The rule that the answer breaks.
        what: &'static str,
    },
    /// A system call failed.
    #[error("{call}: {error}")]
    System {
        /// The call, and what it was for.
        call: &'static str,
        /// The error.
        error: io::Error,
    },
}

impl MemoryHolderError {
    pub(super) fn system(call: &'static str) -> impl Fn(rustix::io::Errno) -> MemoryHolderError {
        move |errno| MemoryHolderError::System { call, error: errno.into() }
    }
}

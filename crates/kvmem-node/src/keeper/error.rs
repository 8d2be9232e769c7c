//! *Errors* of a keeper and of its clients.

use std::io;

use serde::{Deserialize, Serialize};

/// Why a keeper did not do what a client requested. Nothing changed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum KeeperCallError {
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
    #[error("the keeper has descriptors under {name} already: set them aside, or forget them")]
    NameInUse {
        /// The name.
        name: String,
    },
    /// The name has no descriptors.
    #[error("the keeper has nothing under {name}")]
    Absent {
        /// The name.
        name: String,
    },
    /// Another connection has the sole use of the name.
    #[error("process {pid} uses {name}: stop that process first")]
    Claimed {
        /// The name.
        name: String,
        /// The process; 0: its number is not visible to the keeper.
        pid: u32,
    },
    /// There are as many names as there can be.
    #[error("the keeper has {limit} names already, and no more are possible: forget one")]
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
    #[error("the message of {len} bytes cannot be decoded: use the keeper of the same release")]
    UndecodableMessage {
        /// Bytes of the message.
        len: usize,
    },
}

/// Why a keeper cannot run, or why a call of its client failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// The keeper did not do it.
    #[error(transparent)]
    Call(#[from] KeeperCallError),
    /// Another keeper listens on the socket.
    #[error("a keeper answers at {path} already: use it, or another --socket")]
    KeeperInUse {
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
        /// Milliseconds that the keeper has tried.
        waited_ms: u64,
    },
    /// A process of another user listens on the socket.
    #[error(
        "user {uid} listens at {path}, and only this user and root may keep its memory: use \
         another folder"
    )]
    ForeignKeeper {
        /// The path of the socket.
        path: String,
        /// The user.
        uid: u32,
    },
    /// No keeper answers.
    #[error("no keeper answers at {path}: {error}; start `kvmem keeper`")]
    NoKeeper {
        /// The path of the socket.
        path: String,
        /// Why not.
        error: io::Error,
    },
    /// The keeper's answer is not one that the protocol allows.
    #[error("the keeper's answer is not possible: {what}")]
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

impl KeeperError {
    pub(super) fn system(call: &'static str) -> impl Fn(rustix::io::Errno) -> KeeperError {
        move |errno| KeeperError::System { call, error: errno.into() }
    }
}

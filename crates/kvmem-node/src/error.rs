//! *Errors* of a node: of its index file, of its calls, and of its sockets.

use std::io;

use kvmem::arena::ArenaError;
use kvmem::offset::SpaceError;
use serde::{Deserialize, Serialize};

/// Why an index file cannot be used. The server leaves the file as it is.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadIndex {
    /// The file has another format.
    #[error("the file is no index of a node: it begins with {magic:#018x}")]
    Foreign {
        /// The first eight bytes.
        magic: u64,
    },
    /// A machine with another byte order made it.
    #[error("the index has another byte order: {order:#x} instead of 0x1020304")]
    ByteOrder {
        /// The mark of the byte order.
        order: u32,
    },
    /// Another version of kvmem made it.
    #[error(
        "the index has version {version} and this server knows {known}: use the {} kvmem that made \
         it",
        if version > known { "newer" } else { "older" }
    )]
    Version {
        /// The version of the file.
        version: u32,
        /// The version that this server knows.
        known: u32,
    },
    /// The header is damaged.
    #[error("the header of the index is damaged: its checksum does not match")]
    HeaderChecksum,
    /// The number of used entries is damaged.
    #[error(
        "the number of used entries is damaged: {word:#018x} has another checksum, or is more than \
         {entries}"
    )]
    EntriesUsed {
        /// The number, and its checksum above it.
        word: u64,
        /// The entries of the file.
        entries: u32,
    },
    /// The file is shorter or longer than its header says.
    #[error("the index has {got} bytes and its header says {expected}")]
    Length {
        /// The length of the file.
        got: u64,
        /// The length according to the header.
        expected: u64,
    },
    /// The memory file is not the one that the index describes.
    #[error(
        "the index describes memory file {expected_id} of {expected_len} bytes, and the memory \
         file is {got_id} of {got_len} bytes"
    )]
    OtherMemory {
        /// The inode number in the header.
        expected_id: u64,
        /// The length in the header.
        expected_len: u64,
        /// The inode number of the memory file.
        got_id: u64,
        /// The length of the memory file.
        got_len: u64,
    },
    /// The session file is too short.
    #[error("the session file has {got} bytes and a server needs {expected}")]
    SessionFileLength {
        /// The length of the file.
        got: u64,
        /// The bytes of the words of all sessions.
        expected: u64,
    },
    /// The session file is not the one of the index: no server could determine which clients live.
    #[error("the index belongs to session file {expected_id}, and the session file is {got_id}")]
    OtherSessionFile {
        /// The inode number in the header.
        expected_id: u64,
        /// The inode number of the session file.
        got_id: u64,
    },
    /// A namespace's name is damaged.
    #[error("the name of namespace {index} is damaged: its checksum does not match")]
    Namespace {
        /// The number of the namespace.
        index: usize,
    },
}

/// Why the users and groups of a server's options are not possible.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessError {
    /// The name of a namespace is too long.
    #[error("the name of namespace {name:?} has {len} bytes: use a name of at most {limit}")]
    NamespaceName {
        /// The name.
        name: String,
        /// Its bytes.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// A number is neither a user nor a group.
    #[error("{option} has {number}, which is no user and no group: use 0 to 4294967294")]
    NoPrincipal {
        /// The option.
        option: &'static str,
        /// The number.
        number: u32,
    },
    /// Two rules for one user or group say that it writes and that it only reads.
    #[error("{who} is both read-only and not: give it one rule")]
    Contradiction {
        /// The user or the group.
        who: String,
    },
}

/// Why a node cannot be made or recovered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The index file cannot be used.
    #[error(transparent)]
    BadIndex(#[from] BadIndex),
    /// The memory cannot be mapped.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The space of the memory cannot be described.
    #[error("the memory's space: {0}")]
    Space(SpaceError),
    /// An option is not possible.
    #[error("{option} is {value}: {limit}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: u64,
        /// The values that are possible.
        limit: &'static str,
    },
    /// A system call failed.
    #[error("{call}: {error}")]
    System {
        /// The call, and what it was for.
        call: &'static str,
        /// The error.
        error: io::Error,
    },
    /// The options name users or groups that are not possible.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The tier cannot be used.
    #[error("the tier cannot remove values that were removed before: its journal is broken")]
    Tier,
    /// Another server listens on the socket.
    #[error("a server answers at {path} already: stop it, or use another --socket")]
    InUse {
        /// The path of the socket.
        path: String,
    },
}

impl NodeError {
    pub(crate) fn system(call: &'static str) -> impl Fn(rustix::io::Errno) -> NodeError {
        move |errno| NodeError::System { call, error: errno.into() }
    }
}

/// Why the server did not do what a client requested. Nothing changed, unless it says otherwise.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CallError {
    /// Nothing more can be evicted for a reservation.
    #[error(
        "no space for {requested} bytes: {free} are free, the largest free range has {largest}, \
         and the rest is pinned or reserved"
    )]
    OutOfSpace {
        /// The bytes of the block that has no space.
        requested: u64,
        /// The bytes that are free.
        free: u64,
        /// The bytes of the largest free range.
        largest: u64,
    },
    /// The block is longer than the node's memory or its boundary, or empty.
    #[error(
        "a block of {requested} bytes is not possible: lengths are 1 to {limit}, the memory of the \
         node or its boundary; split the value, or serve with a longer `boundary`"
    )]
    BadLength {
        /// The length.
        requested: u64,
        /// The limit.
        limit: u64,
    },
    /// The key is empty or too long.
    #[error("a key of {len} bytes is not possible: keys have 1 to {limit}")]
    BadKey {
        /// Bytes of the key.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// A batch names one key, or one reservation, twice.
    #[error("element {index} of the batch has the key or the reservation of an earlier one")]
    Twice {
        /// The element.
        index: usize,
    },
    /// The batch has more elements than a message may have.
    #[error("a batch of {len} elements is too long: the limit is {limit}; send several")]
    BatchTooLong {
        /// Elements of the batch.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The handle names no reservation or pin of this session: it was released, or it is of another
    /// session.
    #[error("handle {slot}/{generation} is stale: it names nothing that this session has")]
    Stale {
        /// The entry.
        slot: u32,
        /// The generation.
        generation: u32,
    },
    /// The session did not answer for longer than its lease: its reservations have ended.
    #[error("the reservation has ended: the client was silent for longer than its lease")]
    Fenced,
    /// The namespace, the session or the user would exceed a limit.
    #[error("{what} would be {value}, and the limit is {limit}: {}", what.remedy())]
    Quota {
        /// The limited quantity.
        what: Quota,
        /// The value that it would have.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A read-only client made a call that writes.
    #[error("the client is connected read-only: connect it for writing")]
    ReadOnly,
    /// The call is for operators, and the peer is another user.
    #[error(
        "only the server's own user may do this, and users that the server was started with as \
         --operator"
    )]
    NotOperator,
    /// The first message of a connection must be the greeting, and no other one may be. Rings are
    /// passed once.
    #[error("the connection was not greeted, or greeted or passed rings twice")]
    Greeting,
    /// The client speaks another version of the protocol.
    #[error(
        "the client speaks version {version} of the protocol and the server {known}: use the \
         client library of the server's release"
    )]
    Version {
        /// The client's version.
        version: u32,
        /// The server's version.
        known: u32,
    },
    /// There are as many sessions or namespaces as there can be.
    #[error("there are {limit} {what} already, and no more are possible")]
    TooMany {
        /// The kind of things of which there are too many.
        what: TooMany,
        /// The limit.
        limit: usize,
    },
    /// The name of a namespace is too long.
    #[error("the name of the namespace has {len} bytes, and the limit is {limit}")]
    BadNamespace {
        /// Bytes of the name.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// A tier that does not encrypt has digests of keys, and does not know those of a namespace.
    #[error(
        "the tier cannot remove the values of one namespace, because it does not encrypt them: \
         remove those of all, or start the server with a key file for the tier"
    )]
    NamespaceInTier,
    /// The message cannot be decoded.
    #[error("the message of {len} bytes cannot be decoded")]
    Undecodable {
        /// Bytes of the message.
        len: usize,
    },
    /// The server could not take the lock by which it knows that the client lives.
    #[error(
        "the server cannot watch the client: {why}; raise its limit of open files (LimitNOFILE=) \
         and mount /proc"
    )]
    Unwatched {
        /// The failed call and its error.
        why: String,
    },
    /// The user may not connect.
    #[error(
        "user {uid} may not connect: it is not the server's own user {own}, and no --allow-group, \
         --namespace or --operator of the server is for it"
    )]
    NotAllowed {
        /// The user of the client.
        uid: u32,
        /// The user of the server.
        own: u32,
    },
    /// The user may connect, and not use this namespace.
    #[error(
        "user {uid} may not use namespace {name:?}: use one that it may use, or start the server \
         with a --namespace or --allow-group for it"
    )]
    NamespaceNotAllowed {
        /// The user of the client.
        uid: u32,
        /// The name of the namespace.
        name: String,
    },
    /// The user may read in the namespace, and not write.
    #[error(
        "user {uid} may only read in namespace {name:?}: connect read-only, or start the server \
         with a --namespace or --allow-group without :ro for it"
    )]
    OnlyReads {
        /// The user of the client.
        uid: u32,
        /// The name of the namespace.
        name: String,
    },
    /// The memory cannot have this size.
    #[error(
        "a size of {requested} bytes is not possible: this memory has {min} to {max} bytes; for \
         more, start the server again with a larger `--max`"
    )]
    BadSize {
        /// The bytes that were requested.
        requested: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
}

/// The resource that a [`CallError::Quota`] limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Quota {
    /// Bytes that the values and reservations of the namespace take.
    NamespaceBytes,
    /// Pinned values of the namespace.
    NamespacePins,
    /// Bytes of pinned values of the namespace.
    NamespacePinnedBytes,
    /// Bytes that the session has reserved.
    SessionReserved,
    /// Bytes of the values that the session has pinned.
    SessionPinnedBytes,
    /// Values and reservations that the session has.
    SessionHandles,
    /// Bytes that all sessions of the user have reserved.
    UserReserved,
    /// Reservations of all sessions of the user.
    UserReservations,
    /// Values that the sessions of the user have pinned.
    UserPins,
    /// Bytes of the values that the sessions of the user have pinned.
    UserPinnedBytes,
    /// Values that all sessions that only read have pinned.
    ReaderPins,
    /// Bytes of the values that all sessions that only read have pinned.
    ReaderPinnedBytes,
}

impl Quota {
    /// Returns the remedy, as a part of a sentence.
    fn remedy(self) -> &'static str {
        match self {
            Quota::NamespaceBytes => "remove values, release pins, or raise its limit of bytes",
            Quota::NamespacePins => "release pins, or raise its limit of pins",
            Quota::NamespacePinnedBytes => "release pins, or raise its limit of pinned bytes",
            Quota::SessionReserved => "commit or release reservations, or raise `max_reserved`",
            Quota::SessionPinnedBytes => "release pins, or raise `max_pinned`",
            Quota::SessionHandles => "release pins and reservations, or raise `max_handles`",
            Quota::UserReserved | Quota::UserReservations => "commit or release reservations",
            Quota::UserPins | Quota::UserPinnedBytes => {
                "release pins, or let the server's operator make the user an operator"
            }
            Quota::ReaderPins | Quota::ReaderPinnedBytes => {
                "release pins, or connect without `read_only`"
            }
        }
    }
}

impl std::fmt::Display for Quota {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Quota::NamespaceBytes => "the bytes of the namespace",
            Quota::NamespacePins => "the pinned values of the namespace",
            Quota::NamespacePinnedBytes => "the pinned bytes of the namespace",
            Quota::SessionReserved => "the bytes that the session has reserved",
            Quota::SessionPinnedBytes => "the bytes that the session has pinned",
            Quota::SessionHandles => "the pins and reservations of the session",
            Quota::UserReserved => "the bytes that the user has reserved",
            Quota::UserReservations => "the reservations of the user",
            Quota::UserPins => "the values that the user has pinned",
            Quota::UserPinnedBytes => "the bytes that the user has pinned",
            Quota::ReaderPins => "the values that clients have pinned that only read",
            Quota::ReaderPinnedBytes => "the bytes that clients have pinned that only read",
        })
    }
}

/// The things that a [`CallError::TooMany`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TooMany {
    /// Connected clients.
    Sessions,
    /// Namespaces.
    Namespaces,
    /// Clients with rings.
    Rings,
}

impl std::fmt::Display for TooMany {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            TooMany::Sessions => "sessions",
            TooMany::Namespaces => "namespaces",
            TooMany::Rings => "clients with rings",
        })
    }
}

//! *Errors* of a client.

use std::io;

use kvmem::arena::ArenaError;
use kvmem::register::RegisterError;

use crate::error::CallError;

/// Why a client's call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server did not do it.
    #[error(transparent)]
    Call(#[from] CallError),
    /// No server answers, and did not within the time that the client retries.
    #[error("{}", no_answer(path, *waited_ms, error))]
    Disconnected {
        /// The path of the socket.
        path: String,
        /// Milliseconds that the client tried.
        waited_ms: u64,
        /// Why the last attempt failed.
        error: io::Error,
    },
    /// The user of this process may not reach the socket.
    #[error(
        "user {own} may not connect to {path}: {error}; let the server's owner name the user or \
         one of its groups (`kvmem serve --allow-group`), and open the folders above the socket"
    )]
    SocketNotAllowed {
        /// The path of the socket.
        path: String,
        /// The user of the client.
        own: u32,
        /// The error of the connection.
        error: io::Error,
    },
    /// A server answers that has other memory: all values are gone. Connect a new client.
    #[error("the server has other memory than the one before: connect again")]
    MemoryReplaced,
    /// The server belongs to a user that the client does not trust with its values.
    #[error(
        "user {uid} listens at {path}, and this client is user {own} and trusts {}: connect to \
         another path, or name user {uid} in `server_users`",
        trusted(users)
    )]
    ForeignServer {
        /// The path of the socket.
        path: String,
        /// The user of the server.
        uid: u32,
        /// The user of the client.
        own: u32,
        /// The [users](super::ConnectOptions::server_users) that the client trusts. Empty: its own
        /// and root.
        users: Vec<u32>,
    },
    /// The memory cannot be mapped.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The memory cannot be registered, or has no key for a range.
    #[error(transparent)]
    Register(Box<RegisterError>),
    /// The server's answer is not one that the protocol allows.
    #[error("{what}: run the same release of kvmem on both sides")]
    Protocol {
        /// The violation, as a sentence.
        what: &'static str,
    },
    /// The process is a forked child of the one that connected.
    #[error("the client belongs to the parent of this process: connect in the child")]
    Forked,
    /// The client's [`Interrupt`](super::Interrupt) has ended the call. The server may have done
    /// it, or do it yet. Pins and reservations that it then gives are released.
    #[error("the call was interrupted: the server may have done it")]
    Interrupted,
    /// The caller passed more bytes than the reservation has.
    #[error("{len} bytes do not fit at {at} into a reservation of {capacity}")]
    TooLong {
        /// Bytes that the caller passed.
        len: usize,
        /// Where they begin.
        at: usize,
        /// Bytes of the reservation.
        capacity: usize,
    },
    /// The server has ended the session in which it had granted the reservation, and may have
    /// granted the block to another client.
    #[error("the reservation has ended: the server has ended its session; reserve again")]
    ReservationLost,
    /// The server has revoked the pins: the bytes may be those of another value.
    #[error("the pins are revoked: the server has reclaimed them; acquire the values again")]
    PinsRevoked,
    /// A batch names a reservation of another client.
    #[error("element {index} is a reservation of another client: commit it with that one")]
    ForeignReservation {
        /// The element.
        index: usize,
    },
    /// A value's bytes do not have the checksum that its writer has calculated.
    #[error("the value is damaged: its checksum is {got:#010x} and its writer's {expected:#010x}")]
    Damaged {
        /// The checksum of the bytes.
        got: u32,
        /// The checksum that the writer has calculated.
        expected: u32,
    },
    /// A value cannot be verified: its writer has calculated no checksum.
    #[error(
        "the value has no checksum to verify: its writer has connected without checksums; set \
         `checksums` in the writer's options"
    )]
    Unverified,
}

/// Returns what is wrong with a server that does not answer.
fn no_answer(path: &str, waited_ms: u64, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::TimedOut {
        return format!(
            "the server at {path} does not answer, for {waited_ms} ms: it is stopped, hangs or \
             has too much to do"
        );
    }
    format!("no server answers at {path}, for {waited_ms} ms: {error}; start `kvmem serve`")
}

/// Returns the users that a client trusts, as a part of a sentence.
fn trusted(users: &[u32]) -> String {
    match users {
        [] => "its own user and root".to_owned(),
        users => {
            let users: Vec<String> = users.iter().map(u32::to_string).collect();
            format!("only the servers of {}", users.join(", "))
        }
    }
}

impl From<RegisterError> for ClientError {
    fn from(error: RegisterError) -> ClientError {
        ClientError::Register(Box::new(error))
    }
}

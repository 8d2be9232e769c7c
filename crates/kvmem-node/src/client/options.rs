//! *Options* of clients and of values.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvmem::register::Registrar;
use kvmem::tier::{DataType, Priority};

use super::ClientError;
use crate::error::CallError;
use crate::format::MAX_KEY;

/// A function that a waiting thread calls some 20 times a second: true ends the call with
/// [`ClientError::Interrupted`].
///
/// It lets the interpreter of another language look for signals. It makes no call of the client,
/// and waits for no thread that makes one.
#[derive(Clone, Copy, Debug)]
pub struct Interrupt(pub fn() -> bool);

impl PartialEq for Interrupt {
    fn eq(&self, other: &Interrupt) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for Interrupt {}

/// Registrars of a client: the GPUs, NICs and rings that transfer into and out of the node's
/// memory. Two lists are equal if they have the same registrars, not equal ones.
#[derive(Clone, Default)]
pub struct ClientRegistrars(pub Vec<Arc<dyn Registrar>>);

impl PartialEq for ClientRegistrars {
    fn eq(&self, other: &ClientRegistrars) -> bool {
        let same = |(one, other): (&Arc<dyn Registrar>, _)| Arc::ptr_eq(one, other);
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(same)
    }
}

impl Eq for ClientRegistrars {}

impl fmt::Debug for ClientRegistrars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|registrar| registrar.name())).finish()
    }
}

impl<R: Registrar + 'static> From<R> for ClientRegistrars {
    fn from(registrar: R) -> ClientRegistrars {
        ClientRegistrars(vec![Arc::new(registrar)])
    }
}

/// How a client connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The namespace of all keys of the client: a model, a tenant.
    pub namespace: String,
    /// Whether the memory is mapped for reading only. Calls that write fail then.
    pub read_only: bool,
    /// How long a call waits for a server that has ended to start again. Zero: a call fails at
    /// once, and the next one connects again.
    pub retry_for: Duration,
    /// How long a call waits for the answer of a server that is there, such as one that is stopped,
    /// or a socket on which systemd listens while no server runs. It then fails with
    /// [`ClientError::Disconnected`], whose error is of kind
    /// [`TimedOut`](std::io::ErrorKind::TimedOut), and the server may do it yet. A call that waits
    /// for [events](crate::NodeClient::events) has so long in addition. Connecting again counts, so
    /// a call takes at most the sum of this time and of [`retry_for`](Self::retry_for), and an
    /// eighth more.
    pub answer_within: Duration,
    /// Whether the memory's pages are entered into the page table when it is mapped, instead of at
    /// the first touch of each page.
    pub populate: bool,
    /// Whether the client calculates the CRC-32C of each value that it commits. Readers that
    /// [verify](Self::verify) values find only those with a checksum.
    pub checksums: bool,
    /// Whether each value that is acquired is verified first. A damaged value is a miss, and the
    /// server removes it. A value without a checksum is a miss, too, and stays for other clients:
    /// [`unverified`](crate::NodeClient::unverified) counts these. The client writes checksums,
    /// also if [`checksums`](Self::checksums) is false.
    pub verify: bool,
    /// Whether the calls go through [rings](crate::ring) in shared memory instead of the socket. A
    /// call then waits awake for its answer for some microseconds. A server that has no more rings
    /// to give serves the calls by the socket.
    pub rings: bool,
    /// Registrars of the whole memory, used when the client connects: all of it with all of
    /// them, or the connection fails. The registration stays while the client, its pins and its
    /// reservations do, also when the server restarts: the memory stays mapped where it is. A
    /// client that only reads has none.
    pub registrars: ClientRegistrars,
    /// The users whose servers the client trusts with its values. Empty: its own user and root. A
    /// server that systemd gives the socket counts as root's, because systemd listens. Another one
    /// is an error: [`ClientError::ForeignServer`].
    pub server_users: Vec<u32>,
    /// What ends a call that waits, if anything does.
    pub interrupt: Option<Interrupt>,
}

impl ConnectOptions {
    /// Checks that the server at the other end of a socket belongs to a user that the client
    /// trusts.
    pub(super) fn check_server(&self, path: &Path, uid: u32) -> Result<(), ClientError> {
        let own = rustix::process::geteuid().as_raw();
        let trusted = match self.server_users.as_slice() {
            [] => uid == own || uid == 0,
            users => users.contains(&uid),
        };
        if trusted {
            return Ok(());
        }
        let (path, users) = (path.display().to_string(), self.server_users.clone());
        Err(ClientError::ForeignServer { path, uid, own, users })
    }

    /// Returns the time between two looks whether a waiting call is to end.
    pub(super) fn look(&self) -> Duration {
        match self.interrupt {
            Some(_) => Duration::from_millis(50),
            None => {
                (self.answer_within / 8).clamp(Duration::from_millis(10), Duration::from_secs(1))
            }
        }
    }

    /// Fails if the call is to end.
    pub(super) fn check_interrupt(&self) -> Result<(), ClientError> {
        match self.interrupt {
            Some(Interrupt(is_over)) if is_over() => Err(ClientError::Interrupted),
            _ => Ok(()),
        }
    }
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            namespace: String::new(),
            read_only: false,
            retry_for: Duration::from_secs(10),
            answer_within: Duration::from_secs(30),
            populate: false,
            checksums: false,
            verify: false,
            rings: false,
            registrars: ClientRegistrars::default(),
            server_users: Vec::new(),
            interrupt: None,
        }
    }
}

/// The key of a value's [parent](ValueOptions::parent).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ParentKey {
    len: u8,
    bytes: [u8; MAX_KEY],
}

impl ParentKey {
    /// Returns these bytes as the key of a parent.
    ///
    /// # Errors
    /// [`CallError::BadKey`]: no value can have the key.
    pub fn new(key: impl AsRef<[u8]>) -> Result<ParentKey, CallError> {
        let key = key.as_ref();
        if !(1..=MAX_KEY).contains(&key.len()) {
            return Err(CallError::BadKey { len: key.len(), limit: MAX_KEY });
        }
        let mut bytes = [0; MAX_KEY];
        bytes[..key.len()].copy_from_slice(key);
        Ok(ParentKey { len: key.len() as u8, bytes })
    }

    /// Returns the bytes of the key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl fmt::Debug for ParentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ParentKey").field(&self.as_bytes()).finish()
    }
}

/// Hints for a value that is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueOptions {
    /// The key of the value before it in a chain, such as that of the block before it in a prompt;
    /// `None`: the value stands alone. The parent may be stored before, in the same call, later or
    /// never. The node evicts a value only when it has no more values with it as their parent, and
    /// a use of a value is one of its parent.
    pub parent: Option<ParentKey>,
    /// Values of a lower priority are evicted first.
    pub priority: Priority,
    /// The type of its elements. A tier that compresses values tries it first.
    pub data_type: DataType,
    /// After this time the value is gone. `None`: it stays until it is evicted.
    pub ttl: Option<Duration>,
}

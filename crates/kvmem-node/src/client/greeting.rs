//! *Greeting*: the messages of a connection before threads share it.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::channel::Channel;
use super::{ClientError, ConnectOptions};
use crate::error::CallError;
use crate::protocol::{
    Answer, Call, MAX_MESSAGE, NO_ANSWER, PROTOCOL_VERSION, Response, Welcome, decode_response,
    encode_request, version_of_welcome,
};
use crate::session_file::SessionView;
use crate::socket;

/// The time in which a server that starts gives its socket the mode that it is to have.
pub(super) const FORBIDDEN_FOR: Duration = Duration::from_millis(200);

/// The conditions that end a wait.
#[derive(Clone, Copy)]
pub(super) struct Limits<'a> {
    pub(super) options: &'a ConnectOptions,
    /// `None`: never.
    pub(super) until: Option<Instant>,
}

impl Limits<'_> {
    /// Fails if the wait is to end, with [`Errno::TIMEDOUT`] if its time is over.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.options.check_interrupt()?;
        match self.until {
            Some(until) if Instant::now() >= until => Err(Failure::Transient(Errno::TIMEDOUT)),
            _ => Ok(()),
        }
    }
}

/// Receives a message, or ends because the call is to end.
pub(super) fn receive(
    channel: &Channel,
    buffer: &mut Vec<u8>,
    limits: Limits<'_>,
) -> Result<usize, Failure> {
    loop {
        match channel.receive(buffer) {
            // The time of `ConnectOptions::look` is over.
            Err(Errno::AGAIN) => limits.check()?,
            received => return received.map_err(Failure::Transient),
        }
    }
}

/// Why an attempt failed.
pub(super) enum Failure {
    /// Another one may succeed.
    Transient(Errno),
    Final(ClientError),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        Failure::Final(error)
    }
}

pub(super) fn disconnected(path: &Path, waited: Duration, errno: Errno) -> ClientError {
    let (path, error) = (path.display().to_string(), errno.into());
    if is_forbidden(errno) {
        let own = rustix::process::geteuid().as_raw();
        return ClientError::SocketNotAllowed { path, own, error };
    }
    ClientError::Disconnected { path, waited_ms: waited.as_millis() as u64, error }
}

/// Returns whether the user of this process may not reach the socket.
pub(super) fn is_forbidden(errno: Errno) -> bool {
    matches!(errno, Errno::ACCESS | Errno::PERM)
}

/// A server that has answered the greeting.
pub(super) struct Greeted {
    pub(super) socket: OwnedFd,
    /// The memory file.
    pub(super) file: OwnedFd,
    pub(super) view: SessionView,
    pub(super) welcome: Welcome,
}

/// Connects and greets. `registers` says that devices have the memory registered, or will.
pub(super) fn greet(
    path: &Path,
    limits: Limits<'_>,
    token: u64,
    registers: bool,
) -> Result<Greeted, Failure> {
    let look = limits.options.look();
    let socket = socket::connect_within(path, look).map_err(Failure::Transient)?;
    // Before the first byte: what the client says and stores is for this server alone.
    let uid = socket::peer_uid(&socket).map_err(Failure::Transient)?;
    limits.options.check_server(path, uid)?;
    let ConnectOptions { namespace, read_only, .. } = limits.options;
    let (version, read_only) = (PROTOCOL_VERSION, *read_only);
    let hello = Call::Hello { version, namespace, read_only, token };
    let (answer, descriptors) =
        exchange(&socket, &hello, limits).map_err(|failure| reason_of_close(&socket, failure))?;
    let Answer::Welcome(welcome) = answer else {
        return Err(ClientError::Protocol { what: "the server did not answer the greeting" }.into());
    };
    if welcome.version != PROTOCOL_VERSION {
        return Err(other_version(welcome.version).into());
    }
    let Ok([file, sessions]) = <[OwnedFd; 2]>::try_from(descriptors) else {
        return Err(ClientError::Protocol {
            what: "the server answered the greeting without the files of its memory",
        }
        .into());
    };
    let view = SessionView::attach(sessions, welcome.session);
    let no_session = || ClientError::Protocol { what: "the server sent an invalid session number" };
    let view = view.map_err(ClientError::Memory)?.ok_or_else(no_session)?;
    if registers {
        exchange(&socket, &Call::Registers, limits)?;
    }
    Ok(Greeted { socket, file, view, welcome })
}

/// Returns the error of a client whose server speaks another version.
fn other_version(known: u32) -> ClientError {
    CallError::Version { version: PROTOCOL_VERSION, known }.into()
}

/// Returns the reason for which the server has closed the connection before it read the greeting,
/// if it sent one.
fn reason_of_close(socket: &OwnedFd, failure: Failure) -> Failure {
    let Failure::Transient(Errno::PIPE | Errno::CONNRESET) = failure else { return failure };
    let mut buffer = vec![0; 4096];
    let packet = socket::receive(socket, &mut buffer, RecvFlags::DONTWAIT);
    match packet.ok().and_then(|packet| decode_response(&buffer[..packet.len])) {
        Some(Response { result: Err(error), .. }) => ClientError::Call(error).into(),
        _ => failure,
    }
}

/// Asks for rings if the client wants them and the server has some. `resumed` says that the session
/// stays if that fails.
pub(super) fn open_channel(
    socket: OwnedFd,
    resumed: bool,
    limits: Limits<'_>,
) -> Result<Channel, Failure> {
    if !limits.options.rings {
        return Ok(Channel::by_socket(socket));
    }
    let failure = match exchange(&socket, &Call::Rings, limits) {
        Ok((Answer::Rings, descriptors)) => return Ok(Channel::by_rings(socket, descriptors)?),
        Ok(_) => {
            ClientError::Protocol { what: "the server did not answer the request for rings" }.into()
        }
        Err(Failure::Final(ClientError::Call(CallError::TooMany { .. }))) => {
            return Ok(Channel::by_socket(socket));
        }
        Err(failure) => failure,
    };
    if !resumed {
        // The session that was just begun is not used.
        leave(&socket);
    }
    Err(failure)
}

/// Says goodbye on a connection that no other thread uses.
pub(super) fn leave(socket: &OwnedFd) {
    let mut buffer = Vec::new();
    encode_request(NO_ANSWER, &Call::Goodbye, &mut buffer);
    // It has space: each request has had its answer.
    let _ = socket::send(socket, &buffer, &[], SendFlags::DONTWAIT);
}

/// Sends one request on a connection that no other thread uses, and receives its answer.
pub(super) fn exchange(
    socket: &OwnedFd,
    call: &Call<'_>,
    limits: Limits<'_>,
) -> Result<(Answer, Vec<OwnedFd>), Failure> {
    let id = NO_ANSWER + 1;
    let mut buffer = Vec::new();
    encode_request(id, call, &mut buffer);
    socket::send(socket, &buffer, &[], SendFlags::empty()).map_err(Failure::Transient)?;
    buffer.resize(MAX_MESSAGE, 0);
    let packet = loop {
        match socket::receive(socket, &mut buffer, RecvFlags::empty()) {
            Err(Errno::AGAIN) => limits.check()?,
            received => break received.map_err(Failure::Transient)?,
        }
    };
    if packet.len == 0 {
        return Err(Failure::Transient(Errno::CONNRESET));
    }
    let message = &buffer[..packet.len];
    let is_greeting = matches!(call, Call::Hello { .. });
    match decode_response(message) {
        Some(Response { result, .. }) => {
            let answer = result.map_err(ClientError::Call)?;
            Ok((answer, packet.descriptors))
        }
        None if is_greeting
            && let Some(known) = version_of_welcome(message)
            && known != PROTOCOL_VERSION =>
        {
            Err(other_version(known).into())
        }
        None => Err(ClientError::Protocol {
            what: "the server sent an answer that this release cannot decode",
        }
        .into()),
    }
}

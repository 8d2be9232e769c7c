//! *Connection*: one client's socket, and the state of its conversation.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::client_socket::ClientSocket;
use super::ready::Source;
use super::server_rings::ServerRings;
use crate::error::CallError;
use crate::node::SessionIndex;
use crate::protocol::{Answer, FIRST_ID, Response, encode_response};
use crate::socket::Peer;

/// How far a connection is.
#[derive(Debug)]
pub(super) enum Stage {
    /// It was accepted.
    New,
    /// It was greeted.
    Open(SessionIndex),
    /// A client that returned after a restart of the server names what it has.
    Resuming {
        session: SessionIndex,
        /// The handles that it has named.
        named: usize,
        /// Whether it still has all the pins that it has named.
        pins_resumed: bool,
        /// The word of its pins when it was greeted: they were taken back if it is another one.
        pin_word: u64,
        /// Whether it has said that devices have the memory registered.
        registers: bool,
    },
}

/// Requests for events of one connection that wait at a time. A further one is answered at once.
pub(super) const MAX_WAITING: usize = 64;

/// A request for events that waits for the next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingForEvents {
    pub(super) id: u32,
    pub(super) from: u64,
    pub(super) max: u32,
    pub(super) until: u64,
}

/// A client's connection.
#[derive(Debug)]
pub(super) struct AcceptedConnection {
    /// Its number in the server.
    pub(super) key: u32,
    pub(super) socket: ClientSocket,
    /// If there are any, the answers go through them.
    pub(super) rings: Option<ServerRings>,
    pub(super) peer: Peer,
    pub(super) stage: Stage,
    /// Whether the client has the answer to its greeting: it has sent a further message.
    pub(super) knows_session: bool,
    /// Whether the client has said that it writes no more.
    pub(super) goodbye: bool,
    /// When the last message came, apart from [`KeepPins`](crate::protocol::Call::KeepPins).
    pub(super) heard_at: u64,
    /// When the last message came.
    pub(super) ran_at: u64,
    /// At most [`MAX_WAITING`].
    pub(super) waiting: Vec<WaitingForEvents>,
    /// Calls that wait for the tier.
    pub(super) deferred: usize,
    /// Answers to calls that have waited.
    pub(super) late: Vec<(u32, Result<Answer, CallError>)>,
    /// An answer that the socket or the ring has not taken.
    unsent: Option<Vec<u8>>,
    /// Whether epoll waits for the client to take an answer.
    waits_for_space: bool,
    /// Whether answers are dropped: the client has closed the connection.
    ended: bool,
    /// What of the connection is [ready](super::ready).
    packets_ready: bool,
    ring_ready: bool,
}

/// Answers the greeting of a client that may not connect. The greeting may be still to come.
pub(super) fn deny(socket: &ClientSocket, error: CallError) {
    // A greeting that stays unread would reset the connection, and the answer be lost.
    let _ = socket.receive(&mut [0; 256]);
    let mut buffer = Vec::new();
    encode_response(&Response { id: FIRST_ID, result: Err(error) }, &mut buffer);
    let _ = socket.send(&buffer, &[]);
}

impl AcceptedConnection {
    pub(super) fn new(key: u32, socket: ClientSocket, peer: Peer, now: u64) -> AcceptedConnection {
        AcceptedConnection {
            key,
            socket,
            rings: None,
            peer,
            stage: Stage::New,
            knows_session: false,
            goodbye: false,
            heard_at: now,
            ran_at: now,
            waiting: Vec::new(),
            deferred: 0,
            late: Vec::new(),
            unsent: None,
            waits_for_space: false,
            ended: false,
            packets_ready: false,
            ring_ready: false,
        }
    }

    /// Returns whether a source of the connection waits to be served.
    pub(super) fn is_ready(&self, source: Source) -> bool {
        match source {
            Source::Packets => self.packets_ready,
            Source::Ring => self.ring_ready,
        }
    }

    /// Notes whether a source of the connection waits to be served.
    pub(super) fn set_ready(&mut self, source: Source, ready: bool) {
        match source {
            Source::Packets => self.packets_ready = ready,
            Source::Ring => self.ring_ready = ready,
        }
    }

    /// Returns the session, if the connection was greeted.
    pub(super) fn session(&self) -> Option<SessionIndex> {
        match self.stage {
            Stage::New => None,
            Stage::Open(session) | Stage::Resuming { session, .. } => Some(session),
        }
    }

    /// Returns whether an answer waits until the client has read others.
    pub(super) fn is_blocked(&self) -> bool {
        self.unsent.is_some()
    }

    /// Receives a packet, and returns its length: 0 if the client has closed the connection.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.socket.receive(buffer)
    }

    /// Registers with epoll what the connection waits for, if that has changed.
    pub(super) fn watch(&mut self, epoll: &OwnedFd) {
        let blocked = self.is_blocked();
        if blocked == self.waits_for_space {
            return;
        }
        let wait_for = match blocked {
            false => EventFlags::IN,
            // The doorbell says when the ring has space.
            true if self.rings.is_some() => EventFlags::empty(),
            true => EventFlags::OUT,
        };
        if self.socket.watch_for(epoll, self.key, wait_for).is_ok() {
            self.waits_for_space = blocked;
        }
    }

    /// Returns whether the client has closed the connection.
    pub(super) fn has_ended(&self) -> bool {
        self.socket.has_ended()
    }

    /// Drops the answers from now on.
    pub(super) fn end_answers(&mut self) {
        (self.ended, self.unsent) = (true, None);
    }

    /// Returns whether [answers are dropped](Self::end_answers).
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Sends an answer, or queues it until the socket or the ring takes it.
    pub(super) fn answer(
        &mut self,
        id: u32,
        result: Result<Answer, CallError>,
        descriptors: &[BorrowedFd<'_>],
        buffer: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        if self.ended {
            return Ok(());
        }
        encode_response(&Response { id, result }, buffer);
        if self.unsent.is_some() {
            // Only an answer for events comes while another one waits.
            return Err(Errno::AGAIN);
        }
        if !self.transmit(buffer, descriptors)? {
            self.unsent = Some(std::mem::take(buffer));
        }
        Ok(())
    }

    /// Sends answers to calls that have waited, while the client takes them.
    pub(super) fn answer_late(&mut self, buffer: &mut Vec<u8>) -> Result<(), Errno> {
        while !self.is_blocked() {
            let Some((id, result)) = self.late.pop() else { break };
            self.answer(id, result, &[], buffer)?;
        }
        Ok(())
    }

    /// Sends a message by the rings, or by the socket. Returns `false` if it has no space.
    fn transmit(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<bool, Errno> {
        // Descriptors pass through the socket alone. The last ones are those of the rings.
        if let Some(rings) = self.rings.as_mut().filter(|_| descriptors.is_empty()) {
            return rings.send(&self.socket, bytes);
        }
        match self.socket.send(bytes, descriptors) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) if descriptors.is_empty() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Tries once more to send what the socket or the ring has not taken.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        let Some(unsent) = self.unsent.take() else { return Ok(()) };
        if !self.transmit(&unsent, &[])? {
            self.unsent = Some(unsent);
        }
        Ok(())
    }
}

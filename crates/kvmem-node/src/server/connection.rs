//! *Connection*: one client's socket, and the state of its conversation.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::rings::ServerRings;
use super::server::EventSource;
use crate::error::CallError;
use crate::node::{BlockHandle, SessionIndex};
use crate::protocol::{Answer, FIRST_ID, Response, encode};
use crate::socket::{self, Packet, Peer};

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
        pins: Vec<(BlockHandle, u32)>,
        reservations: Vec<BlockHandle>,
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
    pub(super) socket: OwnedFd,
    /// If there are any, the answers go through them.
    pub(super) rings: Option<ServerRings>,
    pub(super) peer: Peer,
    pub(super) stage: Stage,
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
}

impl AcceptedConnection {
    pub(super) fn new(key: u32, socket: OwnedFd, now: u64) -> Result<AcceptedConnection, Errno> {
        let peer = Peer::of(&socket)?;
        let (stage, goodbye, waits_for_space, ended) = (Stage::New, false, false, false);
        let (rings, unsent, waiting, heard_at) = (None, None, Vec::new(), now);
        Ok(AcceptedConnection {
            key,
            socket,
            rings,
            peer,
            stage,
            goodbye,
            heard_at,
            ran_at: now,
            waiting,
            deferred: 0,
            late: Vec::new(),
            unsent,
            waits_for_space,
            ended,
        })
    }

    /// Answers the greeting of a client that may not connect. The greeting may be still to come.
    pub(super) fn deny(&self, error: CallError) {
        // A greeting that stays unread would reset the connection, and the answer be lost.
        let _ = self.receive(&mut [0; 256]);
        let mut buffer = Vec::new();
        encode(&Response { id: FIRST_ID, result: Err(error) }, &mut buffer);
        let _ = socket::send(&self.socket, &buffer, &[], SendFlags::DONTWAIT);
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

    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<Packet, Errno> {
        socket::receive(&self.socket, buffer, RecvFlags::DONTWAIT)
    }

    /// Tells epoll what the connection waits for, if that has changed.
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
        let data = EventData::new_u64(EventSource::Connection(self.key).bits());
        let flags = wait_for | EventFlags::RDHUP;
        if epoll::modify(epoll, &self.socket, data, flags).is_ok() {
            self.waits_for_space = blocked;
        }
    }

    /// Returns whether the client has closed the connection.
    pub(super) fn has_ended(&self) -> bool {
        let mut ends = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ended| ended > 0)
    }

    /// Drops the answers from now on.
    pub(super) fn end_answers(&mut self) {
        (self.ended, self.unsent) = (true, None);
    }

    /// Sends an answer, or keeps it until the socket or the ring takes it.
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
        encode(&Response { id, result }, buffer);
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
        match socket::send(&self.socket, bytes, descriptors, SendFlags::DONTWAIT) {
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

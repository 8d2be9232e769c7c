//! *Rings* of clients: which of them are polled, and how each side is woken.
//!
//! A connection with [rings](crate::ring) is *hot* from a message, or from its doorbell, until no
//! message has come for [`spin`](super::ServerOptions::spin), or until other threads need the
//! processor that the server [polls](crate::polling) on. The server polls the rings of hot
//! connections one after the other, and looks at epoll in between. Before a connection cools down
//! the server says so in the ring, and the next message rings the doorbell, an eventfd that epoll
//! watches.
//!
//! The doorbell of the client is its socket: a packet wakes the thread that reads it.
//!
//! # What a client can do to the server
//!
//! A descriptor that both processes have is a danger: the client could make it blocking, and then
//! let the server wait in a write to it, or in a read. The server therefore neither reads nor
//! writes the eventfd. It watches it edge-triggered, and each write of the client is an edge. The
//! packet to the client is sent with `MSG_DONTWAIT`, which is an argument of the call and not a
//! state of the socket. If the socket is full, the client has enough packets to wake up by.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::connection::AcceptedConnection;
use super::event_source::EventSource;
use super::quantum::Quantum;
use super::ready::Source;
use super::server::NodeServer;
use super::server_rings::{ServerRings, damaged};
use crate::error::{CallError, TooMany};
use crate::ring;
use crate::socket::instant;

/// The most quanta of a connection when the server ends.
const LAST_QUANTA: usize = 16;

impl NodeServer {
    /// Makes rings for a connection. Returns the descriptors for the client.
    pub(super) fn give_rings(
        &mut self,
        connection: &mut AcceptedConnection,
    ) -> Result<[OwnedFd; 2], CallError> {
        if connection.rings.is_some() {
            return Err(CallError::Greeting);
        }
        let limit = self.options.max_rings;
        let too_many = CallError::TooMany { what: TooMany::Rings, limit };
        let uid = connection.peer.uid;
        let of_user = || {
            let others = self.connections.values().filter(|it| it.peer.uid == uid);
            others.filter(|it| it.rings.is_some()).count()
        };
        if self.rings_passed >= limit || of_user() >= self.access.positions_of(uid, limit) {
            return Err(too_many);
        }
        // A process without memory or descriptors has no rings to give, either.
        let Ok((ends, file)) = ring::create() else { return Err(too_many) };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let Ok(bell) = eventfd(0, flags) else { return Err(too_many) };
        let Ok(for_client) = bell.try_clone() else { return Err(too_many) };
        let data = EventData::new_u64(EventSource::Doorbell(connection.key).bits());
        if epoll::add(&self.epoll, &bell, data, EventFlags::IN | EventFlags::ET).is_err() {
            return Err(too_many);
        }
        self.rings_passed += 1;
        self.hot.push(connection.key);
        let active_at = instant();
        connection.rings = Some(ServerRings { ends, bell, active_at, hot: true, last: None });
        Ok([file, for_client])
    }

    /// Gives back what belongs to the rings of a connection that ends.
    pub(super) fn end_rings(&mut self, connection: &mut AcceptedConnection) {
        let Some(rings) = connection.rings.take() else { return };
        // The client has a duplicate of the doorbell, so it would stay in epoll.
        let _ = epoll::delete(&self.epoll, &rings.bell);
        self.rings_passed -= 1;
        self.hot.retain(|key| *key != connection.key);
    }

    /// The doorbell of a client rang: it has sent a message, or has made space for an answer.
    pub(super) fn doorbell(&mut self, key: u32) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if let Some(rings) = connection.rings.as_mut().filter(|rings| !rings.hot) {
            rings.hot = true;
            rings.active_at = instant();
            self.hot.push(key);
        }
        if connection.is_blocked() {
            self.make_ready(key, Source::Ring);
        }
    }

    /// Makes the hot connections ready that have sent a message.
    pub(super) fn poll_hot(&mut self, now: Instant) {
        let mut index = 0;
        while let Some(&key) = self.hot.get(index) {
            if self.poll_ring(key, now) {
                index += 1;
            } else {
                self.hot.swap_remove(index);
            }
        }
    }

    /// Makes a connection ready if it has sent a message. Returns whether it stays hot.
    fn poll_ring(&mut self, key: u32, now: Instant) -> bool {
        let Some(connection) = self.connections.get_mut(&key) else { return false };
        if connection.is_ready(Source::Ring) {
            // It is served, and that may leave it with more.
            return true;
        }
        let (blocked, ended) = (connection.is_blocked(), connection.is_ended());
        let Some(rings) = &mut connection.rings else { return false };
        if ended {
            rings.hot = false;
            return false;
        }
        if !blocked && rings.has_request() {
            rings.active_at = now;
            self.make_ready(key, Source::Ring);
            return true;
        }
        // The doorbell of a blocked connection rings when there is space for the answer.
        if !blocked && self.options.polls_since(rings.active_at, now) {
            return true;
        }
        // Damage is found by the quantum that the true answer leads to.
        rings.hot = !blocked && !rings.ends.requests.prepare_to_sleep().unwrap_or(false);
        rings.hot
    }

    /// Serves some of the requests in the rings of a connection.
    pub(super) fn ring_messages(
        &mut self,
        connection: &mut AcceptedConnection,
        now: u64,
    ) -> Result<(), Errno> {
        let mut buffer = std::mem::take(&mut self.ring_buffer);
        let mut outcome = Ok(true);
        self.quantum = Quantum::new();
        while self.quantum.next_message() {
            outcome = self.ring_message(connection, &mut buffer, now);
            if !matches!(outcome, Ok(true)) {
                break;
            }
        }
        self.ring_buffer = buffer;
        outcome.map(drop)
    }

    /// Takes note that the client has closed the connection. The requests that are in its ring are
    /// served without an answer, some in this quantum and others in further ones. The error says
    /// that all are served.
    pub(super) fn begin_last_messages(
        &mut self,
        connection: &mut AcceptedConnection,
        now: u64,
    ) -> Result<(), Errno> {
        connection.socket.unwatch(&self.epoll);
        connection.end_answers();
        let rings = connection.rings.as_mut().ok_or(Errno::PIPE)?;
        // The client may still have the rings mapped, and send without an end.
        rings.last = Some(rings.ends.requests.end().map_err(damaged)?);
        self.ring_messages(connection, now)
    }

    /// Serves the requests that are in the ring when the server ends, as many as some quanta have.
    /// The client repeats others at the next server.
    pub(super) fn waiting_ring_messages(&mut self, connection: &mut AcceptedConnection, now: u64) {
        for _ in 0..LAST_QUANTA {
            let waits = connection.rings.as_mut().is_some_and(ServerRings::has_request);
            if !waits || self.ring_messages(connection, now).is_err() {
                break;
            }
        }
    }

    /// Serves one request, if there is one and its answer can be sent.
    fn ring_message(
        &mut self,
        connection: &mut AcceptedConnection,
        buffer: &mut Vec<u8>,
        now: u64,
    ) -> Result<bool, Errno> {
        if connection.is_blocked() {
            return Ok(false);
        }
        let Some(rings) = &mut connection.rings else { return Ok(false) };
        if rings.is_over() {
            return Err(Errno::PIPE);
        }
        if !rings.ends.requests.try_receive(buffer).map_err(damaged)? {
            return Ok(false);
        }
        if rings.ends.requests.bell_is_due() {
            connection.socket.wake()?;
        }
        self.serve(connection, buffer, now)?;
        Ok(true)
    }
}

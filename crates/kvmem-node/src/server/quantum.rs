//! *Quanta*: what becomes ready is served, one connection after the other, as [`Ready`] says.
//!
//! [`Ready`]: super::ready::Ready

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::client_socket::ClientSocket;
use super::connection::{AcceptedConnection, WaitingForEvents, deny};
use super::event_source::EventSource;
use super::ready::Source;
use super::server::NodeServer;
use crate::error::CallError;
use crate::node::{MAX_BATCH, SessionIndex};
use crate::protocol::Answer;
use crate::socket::{Peer, instant, now_ms};

/// Messages of one connection that are served before the next one is served.
const MESSAGES_PER_QUANTUM: usize = 16;

/// Keys, sizes and handles after which the quantum of a connection ends. A quantum has less than
/// this and one message more, so it takes a fraction of a millisecond.
const ELEMENTS_PER_QUANTUM: usize = MAX_BATCH;

/// The longest time between two looks at epoll while something is ready, and a quantum.
const LOOK_AFTER: Duration = Duration::from_micros(50);

/// Of this number of connections or sessions, other users leave one to the server's own user and
/// operators.
pub(super) const OWN_PLACES: usize = 16;

/// A user that is neither the server's own nor an operator may have 1/`USER_PLACES` of the
/// connections, sessions, rings and namespaces.
pub(super) const USER_PLACES: usize = 4;

/// Such a user may have reserved 1/`USER_RESERVED` of the memory at a time.
pub(super) const USER_RESERVED: u64 = 2;

/// The longest time, in milliseconds, that a connection may take to greet.
const GREETING_MS: u64 = 10_000;

/// The rest of the quantum of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quantum {
    messages: usize,
    elements: usize,
}

impl Quantum {
    pub(super) fn new() -> Quantum {
        Quantum { messages: MESSAGES_PER_QUANTUM, elements: ELEMENTS_PER_QUANTUM }
    }

    /// Begins a message, if the quantum has not ended.
    pub(super) fn next_message(&mut self) -> bool {
        let goes_on = self.messages > 0 && self.elements > 0;
        self.messages = self.messages.saturating_sub(1);
        goes_on
    }

    /// Takes the elements of a message off the quantum.
    pub(super) fn spend(&mut self, elements: usize) {
        self.elements = self.elements.saturating_sub(elements);
    }
}

/// Entries that are looked at for values that have outlived their time, at each tick.
const EXPIRED_PER_TICK: u32 = 4096;

impl NodeServer {
    /// Accepts a client.
    pub(super) fn accept(&mut self, now: u64) {
        use rustix::net::{SocketFlags, accept_with};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Some(listener) = &self.listener else { return };
        let socket = match accept_with(listener, flags) {
            Ok(socket) => socket,
            Err(errno) => return self.accept_failed(errno),
        };
        let peer = Peer::of(&socket);
        let socket = ClientSocket::new(socket, self.closing_threads.clone());
        let peer = match peer {
            Ok(peer) => peer,
            Err(errno) => return deny(&socket, CallError::Unwatched { why: errno.to_string() }),
        };
        self.admit(socket, peer, now);
    }

    /// Serves a client from now on, if it may connect.
    pub(super) fn admit(&mut self, socket: ClientSocket, peer: Peer, now: u64) {
        let (uid, own) = (peer.uid, self.access.own());
        if !self.access.may_connect(uid, &peer.groups) {
            return deny(&socket, CallError::NotAllowed { uid, own });
        }
        if !self.has_place_for(uid) {
            return;
        }
        self.next_key += 1;
        let key = self.next_key;
        if socket.watch(&self.epoll, key).is_ok() {
            self.connections.insert(key, AcceptedConnection::new(key, socket, peer, now));
        }
    }

    /// Without free descriptors or memory, the client stays in the queue, and the listener would
    /// wake the loop again and again. The next [`tick`](Self::tick) tries again.
    pub(super) fn accept_failed(&mut self, errno: Errno) {
        if matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) {
            self.watch_listener(EventFlags::empty());
        }
    }

    fn watch_listener(&self, flags: EventFlags) {
        let Some(listener) = &self.listener else { return };
        let data = EventData::new_u64(EventSource::Listener.bits());
        let _ = epoll::modify(&self.epoll, listener, data, flags);
    }

    /// Returns whether there is place for a connection of this user now.
    pub(super) fn has_place_for(&self, uid: u32) -> bool {
        let limit = self.options.max_connections;
        let limit = if self.access.is_operator(uid) { limit } else { limit - limit / OWN_PLACES };
        let of_user = self.connections.values().filter(|it| it.peer.uid == uid).count();
        self.connections.len() < limit
            && of_user < self.access.positions_of(uid, self.options.max_connections)
    }

    /// Takes note that a connection is to be served.
    pub(super) fn make_ready(&mut self, key: u32, source: Source) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if !connection.is_ready(source) {
            connection.set_ready(source, true);
            self.ready.add(connection.peer.uid, (key, source));
        }
    }

    /// Serves the connections that are ready until it is time for a look at epoll, or
    /// nothing is ready and no ring is hot.
    pub(super) fn serve_ready(&mut self, now: u64) {
        let started = instant();
        self.latency.begin(started);
        self.poll_hot(started);
        loop {
            match self.ready.next() {
                Some((key, source)) => self.quantum_of(key, source, now),
                None if self.hot.is_empty() => return,
                None => std::hint::spin_loop(),
            }
            let now = instant();
            self.latency.end(now);
            if now.duration_since(started) >= LOOK_AFTER {
                return;
            }
            if self.ready.is_empty() {
                self.poll_hot(now);
            }
        }
    }

    fn quantum_of(&mut self, key: u32, source: Source, now: u64) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        connection.set_ready(source, false);
        match source {
            Source::Packets => self.quantum(key, now),
            // The quantum begins now: an answer to a request of a ring comes within microseconds.
            Source::Ring => self.ring_quantum(key, now_ms()),
        }
    }

    /// Serves the packets of a connection, or closes it.
    pub(super) fn quantum(&mut self, key: u32, now: u64) {
        self.quantum_with(key, |server, connection| {
            let mut outcome = server.messages(connection, now);
            // No packet is read while an answer waits, and no event of a ring reports the end.
            if outcome.is_ok() && connection.is_blocked() && connection.has_ended() {
                outcome = Err(Errno::PIPE);
            }
            if matches!(outcome, Err(Errno::PIPE | Errno::CONNRESET)) {
                outcome = server.begin_last_messages(connection, now);
            }
            outcome
        });
    }

    /// Serves the ring of a connection, or closes it.
    pub(super) fn ring_quantum(&mut self, key: u32, now: u64) {
        self.quantum_with(key, |server, connection| {
            connection.flush()?;
            server.ring_messages(connection, now)
        });
    }

    fn quantum_with(
        &mut self,
        key: u32,
        serve: impl FnOnce(&mut NodeServer, &mut AcceptedConnection) -> Result<(), Errno>,
    ) {
        let Some(mut connection) = self.connections.remove(&key) else { return };
        if serve(self, &mut connection).is_err() {
            self.close(connection);
            return;
        }
        connection.watch(&self.epoll);
        let is_ended = connection.is_ended();
        self.connections.insert(key, connection);
        if is_ended {
            // No other event reports that its ring has more.
            self.make_ready(key, Source::Ring);
        }
    }

    fn messages(&mut self, connection: &mut AcceptedConnection, now: u64) -> Result<(), Errno> {
        connection.flush()?;
        let mut buffer = std::mem::take(&mut self.message_buffer);
        let mut outcome = Ok(());
        self.quantum = Quantum::new();
        while self.quantum.next_message() {
            if connection.is_blocked() {
                break;
            }
            outcome = match connection.receive(&mut buffer) {
                Ok(0) => Err(Errno::PIPE),
                Ok(len) => {
                    self.packet_at = instant();
                    self.serve(connection, &buffer[..len], now)
                }
                Err(Errno::AGAIN) => break,
                Err(error) => Err(error),
            };
            if outcome.is_err() {
                break;
            }
        }
        self.message_buffer = buffer;
        outcome
    }

    /// Ends a connection. Its session ends, too, if the client has said goodbye, or does not know
    /// of it; otherwise with its process, unless the client connects again before.
    pub(super) fn close(&mut self, mut connection: AcceptedConnection) {
        self.end_rings(&mut connection);
        self.end_deferred(connection.key);
        let Some(session) = connection.session() else { return };
        if connection.goodbye || !connection.knows_session {
            self.unwatch(session);
            self.node.end_session(session);
        } else {
            self.node.orphan(session);
            self.end_if_gone(session);
        }
    }

    /// Ends a session whose process is gone. If another process still maps the memory for it, such
    /// as a child of `vfork`, the session ends at a later [`tick`](Self::tick).
    pub(super) fn process_ended(&mut self, number: usize) {
        let Some(session) = self.unwatch_numbered(number) else { return };
        self.disconnect(session);
        self.end_if_gone(session);
    }

    /// Closes the connection of a session, which goes on without one.
    pub(super) fn disconnect(&mut self, session: SessionIndex) {
        let of_session =
            |_: &u32, connection: &mut AcceptedConnection| connection.session() == Some(session);
        let ended: Vec<_> = self.connections.extract_if(of_session).collect();
        for (key, mut connection) in ended {
            self.end_rings(&mut connection);
            self.end_deferred(key);
        }
        self.node.orphan(session);
    }

    /// Ends a session that no client has resumed. A connection may have begun to, and is closed.
    pub(super) fn end_abandoned(&mut self, session: SessionIndex) {
        self.disconnect(session);
        self.unwatch(session);
        self.node.end_session(session);
    }

    /// Answers the requests for events that have waited for one, or for long enough.
    pub(super) fn answer_waiting(&mut self, now: u64) {
        let mut broken = Vec::new();
        let mut buffer = std::mem::take(&mut self.answer_buffer);
        for (key, connection) in &mut self.connections {
            if connection.answer_late(&mut buffer).is_err() {
                broken.push(*key);
                continue;
            }
            connection.watch(&self.epoll);
            let mut at = 0;
            while let Some(waiting) =
                connection.waiting.get(at).filter(|_| !connection.is_blocked())
            {
                let WaitingForEvents { id, from, max, until } = *waiting;
                let Peer { uid, groups, .. } = &connection.peer;
                let sees = |name: Option<&str>| self.access.sees(*uid, groups, name);
                let found = self.node.events_since(from, max as usize, sees);
                if self.node.is_waited_for(&found) && now < until {
                    // Events that the client does not see are looked at once.
                    connection.waiting[at].from = found.next;
                    at += 1;
                    continue;
                }
                connection.waiting.swap_remove(at);
                let answer = Answer::Events(found);
                if connection.answer(id, Ok(answer), &[], &mut buffer).is_err() {
                    broken.push(*key);
                    break;
                }
            }
            connection.watch(&self.epoll);
        }
        self.answer_buffer = buffer;
        for key in broken {
            if let Some(connection) = self.connections.remove(&key) {
                self.close(connection);
            }
        }
    }

    /// Accepts clients again, fences the reservations of silent ones, ends the sessions of clients
    /// that are gone, evicts values that have outlived their time, and closes connections that do
    /// not greet.
    pub(super) fn tick(&mut self, now: u64) {
        self.watch_listener(EventFlags::IN);
        self.node.store_again();
        let lease = self.options.lease.as_millis() as u64;
        let greeting = lease.min(GREETING_MS);
        let is_late = |it: &AcceptedConnection| {
            it.session().is_none() && now.saturating_sub(it.heard_at) > greeting
        };
        let late: Vec<_> = self.connections.extract_if(|_, it| is_late(it)).collect();
        late.into_iter().for_each(|(_, connection)| self.close(connection));
        let silent: Vec<_> = self
            .connections
            .values()
            .filter(|it| now.saturating_sub(it.heard_at) > lease)
            .filter_map(|it| Some((it.session()?, now.saturating_sub(it.ran_at) > lease)))
            .collect();
        for (session, hangs) in silent {
            self.node.fence(session);
            if self.options.reclaim_pins && hangs {
                self.node.reclaim_pins(session);
            }
        }
        for session in self.node.orphans() {
            if self.node.is_abandoned(session, lease, now) {
                self.end_abandoned(session);
            } else {
                self.end_if_gone(session);
            }
        }
        self.node.end_unfinished_reads();
        self.resize_again();
        self.expire_from = self.node.expire(self.expire_from, EXPIRED_PER_TICK, now);
    }

    /// Takes all clients for heard now.
    pub(super) fn renew_leases(&mut self, now: u64) {
        for connection in self.connections.values_mut() {
            (connection.heard_at, connection.ran_at) = (now, now);
        }
    }

    /// Waits for the end of the process of a session.
    pub(super) fn watch_descriptor(
        &mut self,
        number: usize,
        descriptor: OwnedFd,
    ) -> Result<(), Errno> {
        let data = EventData::new_u64(EventSource::Process(number as u32).bits());
        epoll::add(&self.epoll, descriptor.as_fd(), data, EventFlags::IN)?;
        self.processes.insert(number, descriptor);
        Ok(())
    }
}

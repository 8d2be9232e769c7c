//! *Wires*: simulated connections, with the semantics of a `SOCK_SEQPACKET` Unix socket.
//!
//! Packets come whole and in order, or the connection has ended. A side that closes with unread
//! packets resets the other one, which learns so before it reads what was sent before.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use crate::test_stores::{Effect, add};

/// The bytes of a packet, and its descriptors.
type WirePacket = (Vec<u8>, Vec<OwnedFd>);

/// The packets of one direction.
#[derive(Debug, Default)]
struct Queue {
    packets: VecDeque<WirePacket>,
    /// The sender has closed.
    ended: bool,
    /// The sender had unread packets when it closed.
    reset: bool,
}

#[derive(Debug)]
struct WireState {
    number: u64,
    to_server: Queue,
    to_client: Queue,
    /// Packets that a queue takes.
    capacity: usize,
    receiving_ended: bool,
    /// The key of the server's connection, and the events that it waits for.
    watched: Option<(u32, EventFlags)>,
    rung: bool,
    key: Option<u32>,
}

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct Wire(Arc<Mutex<WireState>>);

impl Queue {
    fn receive(&mut self) -> Result<Option<WirePacket>, Errno> {
        if std::mem::take(&mut self.reset) {
            return Err(Errno::CONNRESET);
        }
        match self.packets.pop_front() {
            None if self.ended => Ok(None),
            None => Err(Errno::AGAIN),
            some => Ok(some),
        }
    }

    fn is_readable(&self) -> bool {
        self.ended || self.reset || !self.packets.is_empty()
    }
}

impl Wire {
    pub(super) fn new(number: u64, capacity: usize) -> (Wire, ServerEnd, ClientEnd) {
        let state = WireState {
            number,
            to_server: Queue::default(),
            to_client: Queue::default(),
            capacity,
            receiving_ended: false,
            watched: None,
            rung: false,
            key: None,
        };
        let wire = Wire(Arc::new(Mutex::new(state)));
        (wire.clone(), ServerEnd(wire.clone()), ClientEnd(wire))
    }

    fn state(&self) -> MutexGuard<'_, WireState> {
        self.0.lock().expect("no panic")
    }

    pub(super) fn number(&self) -> u64 {
        self.state().number
    }

    /// Returns whether both sides have closed.
    pub(super) fn is_over(&self) -> bool {
        let state = self.state();
        state.to_server.ended && state.to_client.ended
    }

    /// Returns the key of the connection for which epoll has an event.
    pub(super) fn event(&self) -> Option<u32> {
        let state = self.state();
        let (key, events) = state.watched?;
        let readable = events.contains(EventFlags::IN) && state.to_server.is_readable();
        let has_space = state.to_client.packets.len() < state.capacity;
        let writable = events.contains(EventFlags::OUT) && has_space;
        (readable || writable || state.to_server.ended).then_some(key)
    }

    /// Takes the edge of the server's doorbell. Returns the key of the connection.
    pub(super) fn take_bell(&self) -> Option<u32> {
        let mut state = self.state();
        std::mem::take(&mut state.rung).then_some(state.key).flatten()
    }

    /// Returns whether the server's doorbell has rung.
    pub(super) fn has_rung(&self) -> bool {
        let state = self.state();
        state.rung && state.key.is_some() && !state.to_client.ended
    }

    /// Takes back the last packet to the client: the server ended before it was sent.
    pub(super) fn unsend(&self) {
        let last = self.state().to_client.packets.pop_back();
        last.expect("the packet was just sent");
    }

    fn close(&self, server: bool) {
        let mut state = self.state();
        let WireState { to_server, to_client, .. } = &mut *state;
        let (own, others) = if server { (to_client, to_server) } else { (to_server, to_client) };
        own.ended = true;
        own.reset = !others.packets.is_empty();
        others.packets.clear();
        if server {
            state.watched = None;
        }
    }
}

/// The server's end, which is closed when it is dropped.
#[derive(Debug)]
pub(crate) struct ServerEnd(Wire);

impl ServerEnd {
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut state = self.0.state();
        if state.receiving_ended && state.to_server.packets.is_empty() {
            return Ok(0);
        }
        let Some((bytes, descriptors)) = state.to_server.receive()? else { return Ok(0) };
        assert!(descriptors.is_empty(), "no client sends descriptors");
        let into = buffer.get_mut(..bytes.len()).ok_or(Errno::MSGSIZE)?;
        into.copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut state = self.0.state();
        if state.to_server.ended {
            return Err(Errno::PIPE);
        }
        if state.to_client.packets.len() >= state.capacity {
            return Err(Errno::AGAIN);
        }
        let socket = state.number;
        add(|| Effect::Packet { socket });
        let duplicate = |it: &BorrowedFd<'_>| it.try_clone_to_owned().expect("a descriptor");
        let descriptors = descriptors.iter().map(duplicate).collect();
        state.to_client.packets.push_back((bytes.to_vec(), descriptors));
        Ok(())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0.state().to_server.ended
    }

    pub(crate) fn end_receiving(&self) {
        self.0.state().receiving_ended = true;
    }

    pub(crate) fn watch(&self, key: u32, events: EventFlags) -> Result<(), Errno> {
        let mut state = self.0.state();
        (state.watched, state.key) = (Some((key, events)), Some(key));
        Ok(())
    }

    pub(crate) fn unwatch(&self) {
        self.0.state().watched = None;
    }
}

impl Drop for ServerEnd {
    fn drop(&mut self) {
        self.0.close(true);
    }
}

/// The client's end, which is closed when it is dropped.
#[derive(Debug)]
pub(super) struct ClientEnd(Wire);

impl ClientEnd {
    /// Sends a packet. Returns `false` if there is no space.
    pub(super) fn send(&self, bytes: Vec<u8>) -> Result<bool, Errno> {
        let mut state = self.0.state();
        if state.to_client.ended || state.receiving_ended {
            return Err(Errno::PIPE);
        }
        let has_space = state.to_server.packets.len() < state.capacity;
        if has_space {
            state.to_server.packets.push_back((bytes, Vec::new()));
        }
        Ok(has_space)
    }

    /// Receives a packet; the inner `None` is the end of the connection.
    pub(super) fn receive(&self) -> Option<Option<WirePacket>> {
        match self.0.state().to_client.receive() {
            Ok(packet) => Some(packet),
            Err(Errno::AGAIN) => None,
            Err(_) => Some(None),
        }
    }

    pub(super) fn is_readable(&self) -> bool {
        self.0.state().to_client.is_readable()
    }

    /// Returns whether the server has closed the connection.
    pub(super) fn has_ended(&self) -> bool {
        self.0.state().to_client.ended
    }

    /// Rings the server's doorbell.
    pub(super) fn ring(&self) {
        self.0.state().rung = true;
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        self.0.close(false);
    }
}

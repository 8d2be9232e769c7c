//! *Draining*: how a server ends.
//!
//! When it is [stopped](super::Stopper::stop), a server accepts no client any more. With a
//! [tier](kvmem::tier::Tier) it then stores the values that the tier lacks, those that were used
//! last first, for at most [`drain`](super::ServerOptions::drain); its clients are served
//! meanwhile. It does so whether or not the memory is retained: the server cannot know whether
//! another server follows or the machine goes down, and only the tier outlives the machine.
//!
//! At the end it serves the messages that have come, answers the calls that wait for the tier, and
//! passes the order of use of the values in memory to the tier. Then it closes the connections.
//! Sessions stay in the index, and what a client sends later, or whose answer it has not read, its
//! library repeats at the next server.

use rustix::event::epoll;

use super::connection::AcceptedConnection;
use super::quantum::Quantum;
use super::server::NodeServer;
use crate::node::Node;

/// Values that a server has still to store before it ends.
#[derive(Debug)]
pub(super) struct Drain {
    /// The last one is stored next.
    left: Vec<u32>,
    left_bytes: u64,
    /// In milliseconds since the machine started.
    pub(super) until: u64,
    /// Values that the tier had stored when this pass began.
    stored_before: u64,
}

/// Values that a server has still to store before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainProgress {
    /// Values that the tier has not received yet.
    pub values: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Drain {
    pub(super) fn progress(&self) -> DrainProgress {
        DrainProgress { values: self.left.len() as u64, bytes: self.left_bytes }
    }
}

impl NodeServer {
    /// Takes the request to end. Returns whether the loop ends now: there is nothing to store, or
    /// it was requested a second time.
    pub(super) fn stop_requested(&mut self, now: u64) -> bool {
        let mut requests = [0; 8];
        let _ = rustix::io::read(&*self.stop, &mut requests);
        let again = self.drain.is_some() || u64::from_ne_bytes(requests) > 1;
        self.stop_accepting();
        if again || self.options.drain.is_zero() || !self.node.has_tier() {
            return true;
        }
        let until = now.saturating_add(self.options.drain.as_millis() as u64);
        self.drain = Some(self.begin_pass(until));
        self.observer.publish(self.stats(), self.drain.as_ref());
        false
    }

    /// Closes the socket that is listened to. Clients that connect learn at once that no server
    /// answers.
    fn stop_accepting(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        let _ = epoll::delete(&self.epoll, &listener);
        // First the name, then the socket: a server that follows never finds a dead one.
        self.path = None;
    }

    fn begin_pass(&self, until: u64) -> Drain {
        let (left, left_bytes) = self.node.to_drain();
        Drain { left, left_bytes, until, stored_before: self.node.stored_in_tier() }
    }

    /// Gives the tier values to store: those that it lacks if the server ends, or else those that
    /// would be evicted next.
    pub(super) fn store_in_tier(&mut self) {
        match &mut self.drain {
            Some(drain) => {
                let begun = self.node.drain(&mut drain.left);
                drain.left_bytes = match drain.left.is_empty() {
                    true => 0,
                    false => drain.left_bytes.saturating_sub(begun),
                };
            }
            None => self.node.store_ahead(),
        }
    }

    /// Returns whether a server that ends has stored all that it can, or has no time left.
    pub(super) fn drain_is_over(&mut self, now: u64) -> bool {
        let Some(drain) = &self.drain else { return false };
        if now >= drain.until {
            return true;
        }
        if !drain.left.is_empty() || self.node.is_storing() {
            return false;
        }
        // What came meanwhile needs another pass. A pass in which nothing was stored is the last.
        let next = self.begin_pass(drain.until);
        let is_over = next.left.is_empty() || next.stored_before == drain.stored_before;
        self.drain = Some(next);
        if !is_over {
            self.serve_tier(now);
        }
        is_over
    }

    /// Serves what has come, and answers what waits. Returns the node.
    pub(super) fn end(mut self, now: u64) -> Node {
        self.stop_accepting();
        let keys: Vec<u32> = self.connections.keys().copied().collect();
        for key in keys {
            let Some(mut connection) = self.connections.remove(&key) else { continue };
            self.last_messages(&mut connection, now);
            if connection.goodbye {
                self.close(connection);
            } else {
                self.connections.insert(key, connection);
            }
        }
        self.finish_tier(now);
        self.node.touch_all();
        // The requests for events are answered as if their time was over.
        self.answer_waiting(u64::MAX);
        self.node
    }

    /// Serves the messages that a client has sent so far. No further ones can come by its socket.
    fn last_messages(&mut self, connection: &mut AcceptedConnection, now: u64) {
        connection.socket.end_receiving();
        if connection.flush().is_err() {
            return;
        }
        let mut buffer = std::mem::take(&mut self.message_buffer);
        while !connection.is_blocked() {
            self.quantum = Quantum::new();
            let Ok(len) = connection.receive(&mut buffer) else { break };
            if len == 0 || self.serve(connection, &buffer[..len], now).is_err() {
                break;
            }
        }
        self.message_buffer = buffer;
        self.waiting_ring_messages(connection, now);
    }
}

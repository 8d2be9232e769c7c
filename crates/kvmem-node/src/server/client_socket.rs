//! [`ClientSocket`]: the server's end of a connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::closer::{ClosingSocket, ClosingThreads};
use super::event_source::EventSource;
use crate::protocol::BELL;
#[cfg(all(test, not(loom)))]
use crate::simulator::ServerEnd;
use crate::socket;

/// The server's end of a connection: a socket, or in tests an end of a simulated one.
#[derive(Debug)]
pub(super) enum ClientSocket {
    Socket(ClosingSocket),
    #[cfg(all(test, not(loom)))]
    Simulated(ServerEnd),
}

impl ClientSocket {
    pub(super) fn new(socket: OwnedFd, threads: Option<Arc<ClosingThreads>>) -> ClientSocket {
        ClientSocket::Socket(ClosingSocket::new(socket, threads))
    }

    /// Receives a packet, and returns its length. One that is too long, or has descriptors, is an
    /// error.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            ClientSocket::Socket(socket) => receive(socket, buffer),
            #[cfg(all(test, not(loom)))]
            ClientSocket::Simulated(end) => end.receive(buffer),
        }
    }

    /// Sends a packet, if there is space for it.
    pub(super) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        match self {
            ClientSocket::Socket(socket) => {
                socket::send(socket, bytes, descriptors, SendFlags::DONTWAIT)
            }
            #[cfg(all(test, not(loom)))]
            ClientSocket::Simulated(end) => end.send(bytes, descriptors),
        }
    }

    /// Wakes the client.
    pub(super) fn wake(&self) -> Result<(), Errno> {
        match self.send(&BELL, &[]) {
            Err(Errno::AGAIN) => Ok(()),
            outcome => outcome,
        }
    }

    /// Returns whether the client has closed the connection.
    pub(super) fn has_ended(&self) -> bool {
        match self {
            ClientSocket::Socket(socket) => {
                let mut ends = [PollFd::new(socket, PollFlags::RDHUP)];
                let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
                poll(&mut ends, Some(&at_once)).is_ok_and(|ended| ended > 0)
            }
            #[cfg(all(test, not(loom)))]
            ClientSocket::Simulated(end) => end.has_ended(),
        }
    }

    /// Receives no packets any more that come later.
    pub(super) fn end_receiving(&self) {
        match self {
            ClientSocket::Socket(socket) => {
                let _ = rustix::net::shutdown(socket, Shutdown::Read);
            }
            #[cfg(all(test, not(loom)))]
            ClientSocket::Simulated(end) => end.end_receiving(),
        }
    }

    /// Begins to watch the events of connection `key`.
    pub(super) fn watch(&self, epoll: &OwnedFd, key: u32) -> Result<(), Errno> {
        match self {
            ClientSocket::Socket(socket) => {
                let flags = EventFlags::IN | EventFlags::RDHUP;
                epoll::add(epoll, socket, data_of(key), flags)
            }
            #[cfg(all(test, not(loom)))]
            ClientSocket::Simulated(end) => end.watch(key, EventFlags::IN),
        }
    }

    /// Watches other events of connection `key`, and its end.
    pub(super) fn watch_for(
        &self,
        epoll: &OwnedFd,
        key: u32,
        events: EventFlags,
    ) -> Result<(), Errno> {
        match self {
            ClientSocket::Socket(socket) => {
                epoll::modify(epoll, socket, data_of(key), events | EventFlags::RDHUP)
            }
            #[cfg(all(test, not(loom)))]
            ClientSocket::Simulated(end) => end.watch(key, events),
        }
    }

    pub(super) fn unwatch(&self, epoll: &OwnedFd) {
        match self {
            ClientSocket::Socket(socket) => {
                let _ = epoll::delete(epoll, socket.as_fd());
            }
            #[cfg(all(test, not(loom)))]
            ClientSocket::Simulated(end) => end.unwatch(),
        }
    }
}

fn receive(socket: &ClosingSocket, buffer: &mut [u8]) -> Result<usize, Errno> {
    let (packet, truncated) = socket::receive_whole(socket, buffer, RecvFlags::DONTWAIT)?;
    if !packet.descriptors.is_empty() {
        socket.discard(packet.descriptors);
        return Err(Errno::BADMSG);
    }
    if truncated { Err(Errno::MSGSIZE) } else { Ok(packet.len) }
}

fn data_of(key: u32) -> EventData {
    EventData::new_u64(EventSource::Connection(key).bits())
}

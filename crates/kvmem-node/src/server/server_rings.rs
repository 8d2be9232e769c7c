//! [`ServerRings`]: the ends of the rings of a connection.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;

use super::client_socket::ClientSocket;
use crate::ring::{BadRing, ServerEnds};

/// The rings of a connection.
#[derive(Debug)]
pub(super) struct ServerRings {
    pub(super) ends: ServerEnds,
    /// The server's doorbell.
    pub(super) bell: OwnedFd,
    /// When the last message came.
    pub(super) active_at: Instant,
    pub(super) hot: bool,
    /// The client has closed the connection, and this is the end of what it had sent by then.
    pub(super) last: Option<u64>,
}

impl ServerRings {
    /// Returns whether a request is there. Damage counts as one: receiving it returns the error.
    pub(super) fn has_request(&mut self) -> bool {
        self.ends.requests.has_message().unwrap_or(true)
    }

    /// Returns whether what the client had sent before it closed the connection is served.
    pub(super) fn is_over(&self) -> bool {
        // Positions wrap, and a hostile client may have said any.
        self.last.is_some_and(|last| last.wrapping_sub(self.ends.requests.position()) as i64 <= 0)
    }

    /// Sends an answer. Returns `false` if there is no space; the doorbell then rings once there
    /// is.
    pub(super) fn send(&mut self, socket: &ClientSocket, answer: &[u8]) -> Result<bool, Errno> {
        let answers = &mut self.ends.answers;
        while !answers.try_send(answer).map_err(damaged)? {
            if answers.prepare_to_sleep(answer.len()).map_err(damaged)? {
                return Ok(false);
            }
        }
        if answers.bell_is_due() {
            socket.wake()?;
        }
        Ok(true)
    }
}

/// Ends the connection whose client has damaged its ring.
pub(super) fn damaged(_: BadRing) -> Errno {
    Errno::BADMSG
}

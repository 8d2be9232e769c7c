//! *Probe*: whether a server answers, for a program that has none yet.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::NodeServer;
use crate::error::NodeError;
use crate::node::Node;
use crate::socket;

impl NodeServer {
    /// Returns whether a process listens on the socket at `path`.
    #[must_use]
    pub fn answers_at(path: &Path) -> bool {
        socket::is_listening(path) == Ok(true)
    }
}

impl Node {
    /// Returns the descriptors of the memory file, the index file and the session file, as
    /// [`NodeServer::descriptors`] does.
    ///
    /// # Errors
    /// [`NodeError::Memory`] if the process has no free descriptors.
    pub fn descriptors(&self) -> Result<[OwnedFd; 3], NodeError> {
        self.memory.descriptors()
    }
}

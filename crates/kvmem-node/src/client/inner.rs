//! [`ClientInner`]: what the clones of a client share with its pins and reservations.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Sender;

use kvmem::register::RegistrationSet;

use super::ClientError;
use super::connection::Connection;
use super::memory::ClientMemory;
use crate::node::BlockHandle;

/// What pins and reservations need of their client.
#[derive(Debug)]
pub(super) struct ClientInner {
    pub(super) connection: Arc<Connection>,
    /// Ends the keepalive thread when it is dropped.
    pub(super) _keeping: Option<Sender<()>>,
    /// The memory with the client's registrars.
    pub(super) registration: Option<RegistrationSet>,
    pub(super) memory: ClientMemory,
    /// The server's boundary.
    pub(super) boundary: u64,
    /// Values that were misses because they have no checksum.
    pub(super) unverified: AtomicU64,
}

impl ClientInner {
    /// Tells the server which pins and reservations the client has no more.
    pub(super) fn release(&self, epoch: u64, handles: Vec<BlockHandle>) {
        if !handles.is_empty() {
            self.connection.release(epoch, handles);
        }
    }
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        let registration = self.registration.take();
        if self.connection.is_forked() {
            // The parent's devices still use the keys.
            std::mem::forget(registration);
            return;
        }
        drop(registration);
        // No pin, no reservation and no key is left, so nothing writes to the memory any more.
        self.connection.say_goodbye();
    }
}

/// An answer of another kind than the call's.
pub(super) const UNEXPECTED: ClientError =
    ClientError::Protocol { what: "the server answered another call" };

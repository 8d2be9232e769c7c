//! *Reservations*: blocks that a client writes to.

use std::sync::Arc;

use super::inner::ClientInner;
use super::link::NO_PINS;
use super::{ClientError, ValueOptions};
use crate::node::{BlockHandle, Granted};
use crate::session_file;

/// A block to write a value to, and then to [commit](super::NodeClient::commit). Dropping it frees
/// the block, so transfers of devices into it have ended by then.
#[derive(Debug)]
pub struct NodeReservation {
    /// `None` once it is committed.
    inner: Option<Arc<ClientInner>>,
    block: Granted,
    /// The number of the session in which the server has granted it.
    session: u64,
}

/// A reservation, and what it becomes: see [`commit`](super::NodeClient::commit).
#[derive(Debug)]
pub struct NewValue<K> {
    /// The key of the value.
    pub key: K,
    /// The block with its bytes.
    pub reservation: NodeReservation,
    /// Hints for the value.
    pub options: ValueOptions,
}

impl<K> NewValue<K> {
    /// Makes a value without hints.
    #[must_use]
    pub fn new(key: K, reservation: NodeReservation) -> NewValue<K> {
        NewValue { key, reservation, options: ValueOptions::default() }
    }
}

/// Values that were not committed, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotCommitted<K> {
    /// Why.
    pub error: ClientError,
    /// All values of the call.
    pub values: Vec<NewValue<K>>,
}

impl<K> From<NotCommitted<K>> for ClientError {
    /// Releases the reservations.
    fn from(failed: NotCommitted<K>) -> ClientError {
        failed.error
    }
}

impl NodeReservation {
    pub(super) fn new(inner: Arc<ClientInner>, block: Granted, session: u64) -> NodeReservation {
        NodeReservation { inner: Some(inner), block, session }
    }

    pub(super) fn handle(&self) -> BlockHandle {
        self.block.handle
    }

    /// Returns whether it is a reservation of this client, or of a clone of it.
    pub(super) fn is_of(&self, client: &Arc<ClientInner>) -> bool {
        self.inner.as_ref().is_some_and(|inner| Arc::ptr_eq(inner, client))
    }

    /// Ends the reservation without a message: the server knows.
    pub(super) fn forget(mut self) {
        self.inner = None;
    }

    /// Returns the length in bytes, as it was requested.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a block has at least one byte")]
    pub fn len(&self) -> usize {
        self.block.len as usize
    }

    /// Returns where the block begins, in bytes of the node's [memory](super::NodeClient::memory).
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.block.offset
    }

    fn inner(&self) -> &Arc<ClientInner> {
        self.inner.as_ref().expect("the reservation is not committed")
    }

    /// Returns whether the server still has the reservation, as far as this process knows. It gives
    /// the block to no other client before this process has unmapped the memory, or has ended, so
    /// this is false only after an operator or a fault has ended the session.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.inner().connection.has_session(self.session)
    }

    fn base(&self) -> *mut u8 {
        let inner = self.inner();
        let base = inner.memory.base_mut().expect("a read-only client has no reservations");
        // SAFETY: the block lies in the mapping, which was checked when the answer came.
        unsafe { base.add(self.block.offset as usize) }
    }

    /// Returns the bytes: those that an earlier value left there, until they are written.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping, and no other process has the block until it is
        // committed, as the caller of `connect` has promised.
        unsafe { std::slice::from_raw_parts(self.base(), self.len()) }
    }

    /// Returns the bytes for writing.
    ///
    /// # Errors
    /// [`ClientError::ReservationLost`] if the reservation is no longer [valid](Self::is_valid):
    /// the block may be another client's.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], ClientError> {
        if !self.is_valid() {
            return Err(ClientError::ReservationLost);
        }
        session_file::before_writing();
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.base(), self.len()) })
    }

    /// Returns the address at which the bytes are mapped in this process, for writing, until the
    /// reservation is committed or dropped: for code that takes addresses, such as engines.
    ///
    /// # Errors
    /// [`ClientError::ReservationLost`] if the reservation is no longer [valid](Self::is_valid).
    pub fn as_mut_ptr(&mut self) -> Result<*mut u8, ClientError> {
        Ok(self.bytes_mut()?.as_mut_ptr())
    }

    /// Copies bytes to position `at`.
    ///
    /// # Errors
    /// [`ClientError::TooLong`] and [`ClientError::ReservationLost`]; nothing is copied then.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), ClientError> {
        let (len, capacity) = (bytes.len(), self.len());
        match at.checked_add(len).filter(|end| *end <= capacity) {
            Some(end) => self.bytes_mut()?[at..end].copy_from_slice(bytes),
            None => return Err(ClientError::TooLong { len, at, capacity }),
        }
        Ok(())
    }
}

impl Drop for NodeReservation {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take().filter(|it| !it.connection.is_forked()) else { return };
        let handle = self.block.handle;
        inner.connection.grants(|it| it.reservations.remove(&handle));
        inner.connection.release(NO_PINS, vec![handle]);
    }
}

//! *Resizing*: an operator, or memory pressure, changes the size of the memory while it is served.
//!
//! Each iteration of the event loop does a part of it, a millisecond of work. A change that
//! is stuck, because blocks behind the end are in use, goes on at the next tick.

use super::connection::AcceptedConnection;
use super::deferred::{MAX_DEFERRED, MAX_EVICTIONS};
use super::server::NodeServer;
use crate::error::CallError;
use crate::node::{ResizeStep, SessionIndex, Slice};
use crate::protocol::{Answer, NO_ANSWER};

/// A call that waits until the memory has its size, or as much of it as is possible now.
#[derive(Debug)]
pub(super) struct WaitingForSize {
    connection: u32,
    session: SessionIndex,
    id: u32,
}

impl WaitingForSize {
    pub(super) fn is_of(&self, connection: u32) -> bool {
        self.connection == connection
    }
}

impl NodeServer {
    /// Changes the size for an operator. `None`: the call is answered later.
    pub(super) fn resize(
        &mut self,
        connection: &mut AcceptedConnection,
        id: u32,
        session: SessionIndex,
        size: u64,
    ) -> Result<Option<Answer>, CallError> {
        let (min, max) = self.node.size_limits();
        if size < min || size > max {
            return Err(CallError::BadSize { requested: size, min, max });
        }
        self.node.resize(size);
        self.size_at_rest = self.node.wanted_size();
        self.resizing = ResizeStep::More;
        if id == NO_ANSWER || connection.deferred >= MAX_DEFERRED {
            return Ok(Some(Answer::Resized(self.node.resized())));
        }
        connection.deferred += 1;
        let connection = connection.key;
        self.waiting_for_size.push(WaitingForSize { connection, session, id });
        Ok(None)
    }

    /// Goes on with a change of the size.
    pub(super) fn resize_some(&mut self, slice: Slice) {
        if matches!(self.resizing, ResizeStep::More | ResizeStep::WhenStored) {
            (self.resizing, _) = self.with_evictions(MAX_EVICTIONS, |node| node.resize_some(slice));
        }
        let is_over = matches!(self.resizing, ResizeStep::Done | ResizeStep::Stuck);
        if is_over && !self.waiting_for_size.is_empty() {
            self.answer_resized();
        }
    }

    /// Says to operators how far a change of the size is.
    pub(super) fn answer_resized(&mut self) {
        for waiting in std::mem::take(&mut self.waiting_for_size) {
            let WaitingForSize { connection, session, id } = waiting;
            self.answer_later(connection, session, id, Answer::Resized(self.node.resized()));
        }
    }

    /// Tries again what was stuck.
    pub(super) fn resize_again(&mut self) {
        if self.resizing == ResizeStep::Stuck && self.node.is_resizing() {
            self.resizing = ResizeStep::More;
        }
    }
}

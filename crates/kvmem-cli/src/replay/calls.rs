//! *Calls*: what the running thread has asked of its allocator: counted, timed, and written down if
//! somebody wants that.

use std::cell::RefCell;
use std::sync::Arc;

use super::latency::{Latency, timed};
use crate::ops::recorder::{Recorder, Ticket};

/// The calls of one thread, or of several together.
#[derive(Default)]
pub struct Calls {
    /// Latency of all calls of allocate.
    pub allocate: Latency,
    /// Latency of those that found no room.
    pub no_room: Latency,
    /// The range that was made last, until somebody takes it over.
    ticket: Option<Ticket>,
}

thread_local! {
    static HERE: RefCell<Calls> = RefCell::default();
}

impl Calls {
    /// Those of this thread since it asked last.
    pub fn take() -> Calls {
        HERE.take()
    }

    /// Calls of allocate that found room.
    pub fn served(&self) -> u64 {
        self.allocate.count() - self.no_room.count()
    }

    /// Adds those of another thread.
    pub fn add(&mut self, other: &Calls) {
        self.allocate.add(&other.allocate);
        self.no_room.add(&other.no_room);
    }
}

/// Runs one call of allocate for `size` bytes; `offset` says where what it made begins.
pub fn ask<T, E>(
    recorder: Option<&Arc<Recorder>>,
    size: u64,
    attempt: impl FnOnce() -> Result<T, E>,
    offset: impl FnOnce(&T) -> u64,
) -> Result<T, E> {
    let mut took = Default::default();
    let attempt = || {
        let done;
        (done, took) = timed(attempt);
        done
    };
    let (done, ticket) = match recorder {
        Some(recorder) => recorder.allocate(size, attempt, offset),
        None => (attempt(), None),
    };
    HERE.with_borrow_mut(|calls| {
        calls.allocate.record(took);
        if done.is_err() {
            calls.no_room.record(took);
        }
        calls.ticket = ticket;
    });
    done
}

/// The range that this thread made last, for whoever answers for it.
pub fn ticket() -> Option<Ticket> {
    HERE.with_borrow_mut(|calls| calls.ticket.take())
}

/// Whether a call of this thread has found no room since [`Calls::take`].
pub fn any_refused() -> bool {
    HERE.with_borrow(|calls| calls.no_room.count() > 0)
}

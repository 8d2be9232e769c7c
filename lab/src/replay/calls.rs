//! *Calls*: the calls of the running thread to its allocator: counted, timed, and recorded on
//! request.

use std::cell::RefCell;
use std::sync::Arc;

use crate::ops::recorder::{Recorder, Ticket};
use kvmem_cli::workload::latency::{Latency, timed};

/// The calls of one thread, or of several together.
#[derive(Default)]
pub struct Calls {
    /// Latency of all calls of allocate.
    pub allocate: Latency,
    /// Latency of calls that failed.
    pub no_room: Latency,
    /// The range of the last call, until its key takes it over.
    ticket: Option<Ticket>,
}

thread_local! {
    static HERE: RefCell<Calls> = RefCell::default();
}

impl Calls {
    /// Takes the calls of this thread since it was last called.
    pub fn take() -> Calls {
        HERE.take()
    }

    /// Returns the calls of allocate that succeeded.
    pub fn served(&self) -> u64 {
        self.allocate.count() - self.no_room.count()
    }

    /// Adds the calls of another thread.
    pub fn add(&mut self, other: &Calls) {
        self.allocate.add(&other.allocate);
        self.no_room.add(&other.no_room);
    }
}

/// Runs one call of allocate for `size` bytes; `offset` reads the offset of its result.
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

/// Takes over the range of this thread's last call.
pub fn ticket() -> Option<Ticket> {
    HERE.with_borrow_mut(|calls| calls.ticket.take())
}

/// Whether a call of this thread has failed since [`Calls::take`].
pub fn any_failed() -> bool {
    HERE.with_borrow(|calls| calls.no_room.count() > 0)
}

//! *Ending*: pins and reservations that are over, and are released some at a time.
//!
//! A client may have a million of them when it ends, and each release changes an entry. A thread
//! that released them all in one go would let every other client wait for half a second. What is
//! over is therefore noted in one step, and [released](Node::release_ended) in many, between which
//! others are served. Until then the session has it: its blocks are neither evicted nor granted to
//! others. The place of a session that ends is free when its last block is.

use std::collections::VecDeque;

use super::node::Node;
use super::sessions::{Ended, SessionPin};

/// The pins and reservations that are released in the step that ends them.
const AT_ONCE: usize = 256;

/// All that is over and not released, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Ending(VecDeque<Ended>);

impl Node {
    /// Releases what is over, some of it now.
    pub(super) fn end(&mut self, ended: Ended) {
        let is_first = self.ending.0.is_empty();
        self.ending.0.push_back(ended);
        if is_first {
            self.release_ended(AT_ONCE);
        }
    }

    /// Returns whether something is over and not released.
    pub(crate) fn is_ending(&self) -> bool {
        !self.ending.0.is_empty()
    }

    /// Releases up to `max` pins and reservations that are over.
    pub(crate) fn release_ended(&mut self, max: usize) {
        for _ in 0..max {
            let Some(ended) = self.ending.0.front_mut() else { return };
            let session = ended.session;
            if let Some(slot) = ended.pins.pop() {
                if self.sessions.get(session).pins.get(&slot).is_some_and(SessionPin::is_over) {
                    self.end_pins(session, slot);
                }
            } else if let Some(slot) = ended.reservations.pop() {
                self.end_reservation(session, slot);
            } else {
                let ends_session = ended.ends_session;
                self.ending.0.pop_front();
                if ends_session {
                    self.free_session(session);
                }
            }
        }
    }
}

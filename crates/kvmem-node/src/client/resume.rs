//! *Resuming*: a client that connects again names its grants, and the server says which it still
//! has.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use super::ClientError;
use super::grants::Grants;
use super::greeting::{Failure, Limits, exchange};
use crate::node::BlockHandle;
use crate::protocol::{Answer, Call};

/// Handles of one [`Call::Resume`].
const RESUMED_PER_MESSAGE: usize = 4096;

/// Grants that a server still has for a client that connects again.
pub(super) enum Resumption {
    /// The session with its reservations, and either all of its pins or none.
    Session { epoch: u64, pins: bool, pin_word: u64 },
    /// A new session.
    Nothing { epoch: u64, pin_word: u64 },
}

/// Grants that a client names to a server when it connects again.
#[derive(Default)]
pub(super) struct Named {
    pub(super) pins: HashMap<BlockHandle, u32>,
    pub(super) reservations: Vec<BlockHandle>,
}

impl Named {
    pub(super) fn of(grants: &Grants) -> Named {
        let reservations = grants.reservations.keys().copied().collect();
        Named { pins: grants.pins(), reservations }
    }

    /// Returns the grants that the client has dropped since: with the pins, if the server still
    /// has them.
    pub(super) fn dropped_since(&self, grants: &Grants, with_pins: bool) -> Vec<BlockHandle> {
        let has = |handle: &&BlockHandle| !grants.reservations.contains_key(handle);
        let mut dropped: Vec<BlockHandle> = self.reservations.iter().filter(has).copied().collect();
        if with_pins {
            let left = grants.pins();
            for (handle, count) in &self.pins {
                let fewer = count.saturating_sub(left.get(handle).copied().unwrap_or(0));
                dropped.extend(std::iter::repeat_n(*handle, fewer as usize));
            }
        }
        dropped
    }
}

/// Names grants to a server, and returns those that it has resumed.
pub(super) fn resume_grants(
    socket: &OwnedFd,
    named: &Named,
    limits: Limits<'_>,
) -> Result<Resumption, Failure> {
    let pins: Vec<(BlockHandle, u32)> =
        named.pins.iter().map(|(handle, count)| (*handle, *count)).collect();
    for pins in pins.chunks(RESUMED_PER_MESSAGE) {
        let call = Call::Resume { pins: pins.to_vec(), reservations: Vec::new() };
        exchange(socket, &call, limits)?;
    }
    for reservations in named.reservations.chunks(RESUMED_PER_MESSAGE) {
        let reservations = reservations.to_vec();
        exchange(socket, &Call::Resume { pins: Vec::new(), reservations }, limits)?;
    }
    match exchange(socket, &Call::ResumeEnd, limits)?.0 {
        Answer::Resumed { epoch, pins_resumed, pin_word } => {
            Ok(Resumption::Session { epoch, pins: pins_resumed, pin_word })
        }
        _ => Err(ClientError::Protocol {
            what: "the server did not answer the request to resume the session",
        }
        .into()),
    }
}

//! [`Link`]: multiplexes the requests of many threads over one channel.

use std::collections::HashSet;
use std::sync::Arc;

use rustix::io::Errno;

use super::channel::Channel;
use crate::error::CallError;
use crate::node::BlockHandle;
use crate::protocol::{Answer, NO_ANSWER, Response};

pub(super) type Outcome = Result<Answer, CallError>;

/// The epoch of a release that ends reservations alone.
pub(super) const NO_PINS: u64 = 0;

/// The channel to one server, and the answers that came.
#[derive(Debug)]
pub(super) struct Link {
    /// Counts the connections of this client.
    pub(super) number: u64,
    pub(super) channel: Arc<Channel>,
    /// Why no more answers come.
    pub(super) broken: Option<Errno>,
    pub(super) next_id: u32,
    /// Requests without an answer: `None` until it comes. There are a few for each thread, so they
    /// are searched one by one.
    pub(super) waiting: Vec<(u32, Option<Outcome>)>,
    /// Requests without an answer that no thread waits for, because their calls were interrupted.
    pub(super) abandoned: HashSet<u32>,
    /// Pins and reservations that their answers granted.
    pub(super) unwanted: Vec<(u64, Vec<BlockHandle>)>,
    /// Whether a thread reads the channel.
    pub(super) reading: bool,
}

impl Link {
    pub(super) fn new(number: u64, channel: Channel) -> Link {
        Link {
            number,
            channel: Arc::new(channel),
            broken: None,
            next_id: NO_ANSWER,
            waiting: Vec::new(),
            abandoned: HashSet::new(),
            unwanted: Vec::new(),
            reading: false,
        }
    }

    /// Ends the wait for an answer.
    pub(super) fn remove(&mut self, id: u32) {
        self.waiting.retain(|(of, _)| *of != id);
    }

    /// Returns whether an answer has come.
    pub(super) fn is_answered(&self, id: u32) -> bool {
        self.waiting.iter().any(|(of, it)| *of == id && it.is_some())
    }

    /// Ends the wait for an answer that has come.
    pub(super) fn remove_answered(&mut self, id: u32) -> Option<Outcome> {
        let place = self.waiting.iter().position(|(of, it)| *of == id && it.is_some())?;
        self.waiting.swap_remove(place).1
    }

    /// Stores an answer for the thread that waits for it.
    pub(super) fn take(&mut self, response: Result<Option<Response>, Errno>) {
        match response {
            Ok(Some(Response { id, result })) => {
                if let Some((_, place)) = self.waiting.iter_mut().find(|(of, _)| *of == id) {
                    *place = Some(result);
                } else if self.abandoned.remove(&id) {
                    self.unwanted.extend(handles_of(&result));
                }
                // An answer with an unknown id is a protocol error; the client drops it.
            }
            Ok(None) => self.broken = Some(Errno::CONNRESET),
            Err(errno) => self.broken = Some(errno),
        }
    }
}

/// Returns the pins and reservations that an answer gives, and the epoch of the pins.
pub(super) fn handles_of(outcome: &Outcome) -> Option<(u64, Vec<BlockHandle>)> {
    match outcome {
        Ok(Answer::Pinned { epoch, blocks, .. }) => {
            Some((*epoch, blocks.iter().flatten().map(|it| it.handle).collect()))
        }
        Ok(Answer::Reserved(blocks)) => {
            Some((NO_PINS, blocks.iter().map(|it| it.handle).collect()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Granted;

    #[test]
    fn grants_of_an_abandoned_call_are_released() {
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let mut link = Link::new(1, Channel::by_socket(socket.into()));
        let handle = BlockHandle { slot: 3, generation: 7 };
        let granted = Granted { handle, offset: 0, len: 1, checksum: None };
        let pinned = || {
            let blocks = vec![None, Some(granted)];
            Ok(Answer::Pinned { epoch: 9, blocks, pending: Vec::new() })
        };
        link.waiting.push((5, None));
        link.abandoned.insert(6);
        for id in [5, 6, 7] {
            link.take(Ok(Some(Response { id, result: pinned() })));
        }
        assert!(matches!(link.remove_answered(5), Some(Ok(Answer::Pinned { .. }))));
        assert_eq!((link.unwanted, link.abandoned.len()), (vec![(9, vec![handle])], 0));
    }
}

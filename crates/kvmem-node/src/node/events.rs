//! *Events*: what was stored and what went, for routers that send a request where its prefix is.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// What happened to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// It can be found under its key.
    Stored,
    /// Another value came under its key.
    Replaced,
    /// A client or an operator removed it.
    Removed,
    /// Its memory was needed, or its time was over.
    Evicted,
    /// Its bytes did not have its checksum.
    Damaged,
}

/// Something that happened to a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts all events of the server since it started.
    pub number: u64,
    /// What happened.
    pub kind: EventKind,
    /// The namespace of the key.
    pub namespace: u16,
    /// The key.
    pub key: Vec<u8>,
}

/// The last events.
#[derive(Debug)]
pub(super) struct EventLog {
    events: VecDeque<(EventKind, u16, Box<[u8]>)>,
    /// The number of the next event.
    next: u64,
    max: usize,
}

impl EventLog {
    pub(super) fn new(max: usize) -> EventLog {
        EventLog { events: VecDeque::new(), next: 0, max }
    }

    pub(super) fn add(&mut self, kind: EventKind, namespace: u16, key: &[u8]) {
        self.next += 1;
        if self.max == 0 {
            return;
        }
        if self.events.len() == self.max {
            self.events.pop_front();
        }
        self.events.push_back((kind, namespace, key.into()));
    }

    /// Returns at most `max` events from number `from` on, and the number to go on with. A first
    /// event with a higher number than `from` says that events between were dropped.
    pub(super) fn since(&self, from: u64, max: usize) -> (Vec<Event>, u64) {
        let first = self.next - self.events.len() as u64;
        let from = from.clamp(first, self.next);
        let skip = (from - first) as usize;
        let events: Vec<Event> = (from..)
            .zip(self.events.iter().skip(skip).take(max))
            .map(|(number, (kind, namespace, key))| {
                let (kind, namespace, key) = (*kind, *namespace, key.to_vec());
                Event { number, kind, namespace, key }
            })
            .collect();
        let next = from + events.len() as u64;
        (events, next)
    }
}

impl super::Node {
    /// Returns at most `max` events from number `from` on, and the number to go on with.
    pub(crate) fn events_since(&self, from: u64, max: usize) -> (Vec<Event>, u64) {
        self.events.since(from, max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_events_leave_a_gap() {
        let mut log = EventLog::new(3);
        for key in 0..5_u8 {
            log.add(EventKind::Stored, 0, &[key]);
        }
        let (events, next) = log.since(0, 2);
        let numbers: Vec<(u64, u8)> = events.iter().map(|it| (it.number, it.key[0])).collect();
        assert_eq!((numbers, next), (vec![(2, 2), (3, 3)], 4));
        let (events, next) = log.since(next, 10);
        assert_eq!((events.len(), next), (1, 5));
        assert_eq!(log.since(next, 10), (Vec::new(), 5));
        // A client of an earlier server knows higher numbers.
        assert_eq!(log.since(1000, 10), (Vec::new(), 5));
    }
}

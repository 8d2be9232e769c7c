//! [`EventSource`]: the sources of events.

/// Source of an event of epoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventSource {
    Listener,
    Stop,
    Connection(u32),
    /// The process of a session.
    Process(u32),
    /// The threads of the tier and the scrubber.
    Threads,
    /// The doorbell of a connection's rings.
    Doorbell(u32),
    /// The kernel says that tasks wait for memory.
    Stalls,
}

impl EventSource {
    pub(super) fn bits(self) -> u64 {
        let (kind, number) = match self {
            EventSource::Listener => (0, 0),
            EventSource::Stop => (1, 0),
            EventSource::Connection(number) => (2, number),
            EventSource::Process(number) => (3, number),
            EventSource::Doorbell(number) => (4, number),
            EventSource::Threads => (5, 0),
            EventSource::Stalls => (6, 0),
        };
        kind << 32 | u64::from(number)
    }

    pub(super) fn from_bits(bits: u64) -> EventSource {
        match (bits >> 32, bits as u32) {
            (0, _) => EventSource::Listener,
            (1, _) => EventSource::Stop,
            (2, number) => EventSource::Connection(number),
            (3, number) => EventSource::Process(number),
            (4, number) => EventSource::Doorbell(number),
            (6, _) => EventSource::Stalls,
            _ => EventSource::Threads,
        }
    }
}

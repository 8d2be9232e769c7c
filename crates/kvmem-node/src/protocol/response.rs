//! *Responses*: what the server answers.

use serde::{Deserialize, Serialize};

use crate::error::CallError;
use crate::node::{Events, Granted, Listed, Located, Miss, NodeStats, Resized};

/// A message of the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Response {
    /// Id of the request.
    pub(crate) id: u32,
    pub(crate) result: Result<Answer, CallError>,
}

/// The answer of the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// To a greeting. The message has two descriptors: the memory file, and the words of pins.
    Welcome(Welcome),
    /// To [`ResumeEnd`](super::Call::ResumeEnd).
    Resumed {
        /// Epoch of the session's pins.
        epoch: u64,
        /// Whether it has all pins that were named; it has none of them otherwise.
        pins_resumed: bool,
        /// As in the [welcome](Welcome::pin_word).
        pin_word: u64,
    },
    Done,
    /// To [`Rings`](super::Call::Rings). The message has two descriptors: the memory file of the
    /// rings, and the server's doorbell.
    Rings,
    Count(u64),
    /// One element for each key.
    Pinned {
        /// Epoch of the session's pins. A higher one says that all earlier pins have ended.
        epoch: u64,
        blocks: Vec<Option<Granted>>,
        /// Positions of keys without a block whose values the tier is about to read. Empty if the
        /// call has waited for them.
        pending: Vec<u16>,
    },
    Reserved(Vec<Granted>),
    Stats(Box<NodeStats>),
    Events(Events),
    Listed {
        values: Vec<Listed>,
        next: Option<u32>,
    },
    Sessions(Vec<SessionListed>),
    /// To [`Locate`](super::Call::Locate): one element for each key.
    Located(Vec<Located>),
    Misses(Vec<Miss>),
    /// To [`Resize`](super::Call::Resize).
    Resized(Resized),
}

/// Answer to the greeting of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) version: u32,
    /// Names the memory: another number says that the values are gone.
    pub(crate) node_id: u64,
    pub(crate) memory_len: u64,
    /// The bytes in front that have pages now.
    pub(crate) size: u64,
    /// Whether pages of the memory go back to the kernel, or may.
    pub(crate) is_elastic: bool,
    pub(crate) align: u64,
    /// No block crosses a multiple of it; 0: there is none.
    pub(crate) boundary: u64,
    /// Resumes the session at a later server.
    pub(crate) token: u64,
    pub(crate) lease_ms: u64,
    /// The epoch of the session's pins: random, not 0, and higher after its pins were reclaimed.
    pub(crate) epoch: u64,
    /// The place of the session's [words](crate::session_file).
    pub(crate) session: u16,
    /// The value of that word at `epoch`. Both rise by one when the server revokes the pins of the
    /// session.
    pub(crate) pin_word: u64,
    /// Whether the session goes on that the greeting named.
    pub(crate) resumed: bool,
}

/// A client, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionListed {
    /// The process; 0: its number is not visible to the server.
    pub pid: u32,
    /// The name of the namespace.
    pub namespace: String,
    /// Values that it has pinned.
    pub pins: u64,
    /// Its reservations.
    pub reservations: u64,
    /// Whether it is connected now. Another one has not returned since the server restarted, or has
    /// closed its connection without saying that it writes no more.
    pub connected: bool,
    /// Milliseconds since its last message.
    pub silent_ms: u64,
}

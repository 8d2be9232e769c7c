//! *Requests*: what clients say.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::node::BlockHandle;

/// A message of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request<'a> {
    /// Comes back with the answer; [`NO_ANSWER`](super::NO_ANSWER): there is none.
    pub(crate) id: u32,
    #[serde(borrow)]
    pub(crate) call: Call<'a>,
}

/// A key, as bytes of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key<'a>(pub(crate) &'a [u8]);

impl Serialize for Key<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Key<'a>, D::Error> {
        <&'a [u8]>::deserialize(from).map(Key)
    }
}

/// One value of [`Call::Commit`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Commit<'a> {
    pub(crate) handle: BlockHandle,
    #[serde(borrow)]
    pub(crate) key: Key<'a>,
    /// The key of the value before it in its chain.
    #[serde(borrow)]
    pub(crate) parent: Option<Key<'a>>,
    pub(crate) checksum: Option<u32>,
    pub(crate) priority: u8,
    /// The number of a [`DataType`](kvmem::tier::DataType).
    pub(crate) data_type: u8,
    pub(crate) ttl_ms: u64,
}

/// The request of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call<'a> {
    /// The first message of a connection.
    Hello {
        version: u32,
        namespace: &'a str,
        read_only: bool,
        /// The token of a session that an earlier server gave; 0: a new session.
        token: u64,
    },
    /// Pins and reservations that a returning client has. Several such messages may follow the
    /// greeting.
    Resume {
        pins: Vec<(BlockHandle, u32)>,
        reservations: Vec<BlockHandle>,
    },
    /// Ends the [`Resume`](Call::Resume) messages: everything else of the session is released.
    ResumeEnd,
    Lookup {
        #[serde(borrow)]
        keys: Vec<Key<'a>>,
    },
    /// Releases handles, then pins the values of keys.
    Acquire {
        /// As in [`Release`](Call::Release).
        epoch: u64,
        release: Vec<BlockHandle>,
        #[serde(borrow)]
        keys: Vec<Key<'a>>,
        prefix_only: bool,
        /// Whether the answer waits for values that only the tier has. Otherwise it says which
        /// they are, and the tier reads them meanwhile.
        wait: bool,
    },
    Reserve {
        sizes: Cow<'a, [u64]>,
        /// Whether the answer waits for space that the tier is about to free.
        wait: bool,
    },
    Commit {
        #[serde(borrow)]
        items: Vec<Commit<'a>>,
    },
    Release {
        /// The epoch of the session's pins; 0: the handles are those of reservations. Pins of
        /// another epoch have ended already, and are not released again.
        epoch: u64,
        handles: Cow<'a, [BlockHandle]>,
    },
    Remove {
        #[serde(borrow)]
        keys: Vec<Key<'a>>,
    },
    Touch {
        #[serde(borrow)]
        keys: Vec<Key<'a>>,
    },
    /// Asks for a pair of [rings](crate::ring). All later messages go through them, both ways.
    Rings,
    /// Says that the client lives.
    KeepAlive,
    /// Says that the process of the client runs: its pins stay, and its reservations do not.
    KeepPins,
    Stats,
    /// Events from position `from` on. Waits for the first one for at most `wait_ms`, unless events
    /// were lost before that position.
    Events {
        from: u64,
        max: u32,
        wait_ms: u32,
    },
    /// The client writes to no block any more: its session ends with the connection.
    Goodbye,
    /// Values whose bytes do not have their checksums.
    Damaged {
        handles: Vec<BlockHandle>,
    },
    /// Of operators: the values from entry `from` on.
    List {
        from: u32,
        max: u32,
    },
    /// Of operators: the sessions.
    Sessions,
    /// Of operators: evicts at least this number of bytes.
    Evict {
        namespace: Option<&'a str>,
        bytes: u64,
    },
    /// Of operators: removes all values of a namespace, or of all.
    Clear {
        namespace: Option<&'a str>,
    },
    /// Of operators: ends the pins of a process.
    ReclaimPins {
        pid: u32,
    },
    /// Where the values of keys are.
    Locate {
        #[serde(borrow)]
        keys: Vec<Key<'a>>,
    },
    /// The values of the session's namespace, from entry `from` on.
    ListNamespace {
        from: u32,
        max: u32,
    },
    /// The last misses of the session's namespace, or, of operators, of all.
    Misses {
        all: bool,
        max: u32,
    },
    /// Of operators: changes the size of the memory.
    Resize {
        size: u64,
    },
    /// Says that devices of the client have the memory registered, or will: its pages stay. A
    /// client that returns says it before [`ResumeEnd`](Call::ResumeEnd).
    Registers,
}

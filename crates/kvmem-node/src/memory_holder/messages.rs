//! *Messages* between a memory holder and its clients, in postcard's encoding.
//!
//! Each packet has the version of this protocol as its first byte, so that a memory holder that an
//! earlier release started answers a later one that it does not understand the message.

use serde::{Deserialize, Serialize};

use super::MemoryHolderCallError;

/// The first byte of each message. Another encoding of a message is another version.
pub(super) const MESSAGES_VERSION: u8 = 1;

/// The most bytes of a message. The longest one is the list of all names.
pub(super) const MAX_HOLDER_MESSAGE: usize = 16 << 10;

/// A request to a memory holder.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum HolderCall<'a> {
    Claim {
        name: &'a str,
    },
    /// The message carries `count` descriptors.
    Put {
        name: &'a str,
        count: u8,
    },
    Get {
        name: &'a str,
    },
    List,
    Forget {
        name: &'a str,
    },
    Rename {
        from: &'a str,
        to: &'a str,
    },
    Stop,
}

/// The answer of a memory holder.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum HolderAnswer {
    Done,
    /// The message carries `count` descriptors.
    Descriptors {
        count: u8,
    },
    Listed(Vec<RetainedListed>),
}

pub(super) type HolderOutcome = Result<HolderAnswer, MemoryHolderCallError>;

/// Memory that a memory holder has under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainedListed {
    /// The name.
    pub name: String,
    /// The number of descriptors.
    pub descriptors: u32,
    /// The sum of the lengths of the files.
    pub bytes: u64,
    /// The process that has claimed the name; 0: its number is not visible to the memory holder.
    pub claimed_by: Option<u32>,
    /// Milliseconds since the descriptors came.
    pub retained_ms: u64,
}

/// Encodes a message into `buffer`, which it clears first.
pub(super) fn encode(message: &impl Serialize, buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.push(MESSAGES_VERSION);
    let encoded = postcard::to_extend(message, std::mem::take(buffer));
    *buffer = encoded.expect("a vector takes any message");
}

/// Decodes a message; `None` if it has another version, is none of the type, or has bytes behind
/// it.
pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    let bytes = bytes.strip_prefix(&[MESSAGES_VERSION])?;
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}

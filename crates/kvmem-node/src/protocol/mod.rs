//! *Protocol*: the messages between a client and the server.
//!
//! A message is one packet of a `SOCK_SEQPACKET` Unix socket: the kernel preserves the boundaries,
//! so there is no framing to get wrong, and no partial message. Its bytes are a [`Request`] or a
//! [`Response`] in postcard's encoding. The answers of one connection come in the order of its
//! requests, except that of [`Call::Events`], and a client need not wait for one before it sends
//! the next.
//!
//! A client that calls often asks for a pair of [rings](crate::ring) after the greeting, and the
//! messages of the connection then go through them. The socket stays: its end is the end of the
//! connection, and a packet on it is the client's doorbell ([`BELL`]).
//!
//! Values never pass through the socket. The answer to the greeting carries a descriptor of the
//! memory file, and all others carry offsets.

mod acquisition;
mod output;
mod request;
mod response;
#[cfg(all(test, not(loom)))]
mod tests;

use output::Output;
pub(crate) use request::{Call, Commit, Key, Request};
pub use response::SessionListed;
pub(crate) use response::{Answer, Response, Welcome};

/// The version of the protocol, which both sides must have. Another encoding of a message, and
/// another layout of the rings or of the session file, is another version.
pub const PROTOCOL_VERSION: u32 = 9;

/// The most bytes of a message. A longer one is cut off by the kernel and cannot be decoded.
pub const MAX_MESSAGE: usize = 176 << 10;

/// The request that has no answer.
pub(crate) const NO_ANSWER: u32 = 0;

/// The number of the first request of a client, its greeting.
pub(crate) const FIRST_ID: u32 = NO_ANSWER + 1;

/// The place of [`Call::Hello`] among the calls.
const HELLO: u32 = 0;
/// The place of [`Answer::Welcome`] among the answers.
const WELCOME: u32 = 0;
/// The place of an answer among the results; an error has 1.
const OK: u32 = 0;

/// The packet that wakes a client which waits for an answer by its ring.
pub(crate) const BELL: [u8; 1] = [0];

/// Encodes a request into `buffer`, which it clears first.
pub(crate) fn encode_request(id: u32, call: &Call<'_>, buffer: &mut Vec<u8>) {
    /// A [`Request`] with a borrowed call.
    #[derive(serde::Serialize)]
    struct Borrowed<'a> {
        id: u32,
        call: &'a Call<'a>,
    }
    if !acquisition::encode_request(id, call, buffer) {
        encode(&Borrowed { id, call }, buffer);
    }
}

/// Encodes a response into `buffer`, which it clears first.
pub(crate) fn encode_response(response: &Response, buffer: &mut Vec<u8>) {
    if !acquisition::encode_response(response, buffer) {
        encode(response, buffer);
    }
}

/// Decodes a request; `None` if it is none.
pub(crate) fn decode_request(bytes: &[u8]) -> Option<Request<'_>> {
    acquisition::decode_request(bytes).or_else(|| decode(bytes))
}

/// Decodes a response; `None` if it is none.
pub(crate) fn decode_response(bytes: &[u8]) -> Option<Response> {
    acquisition::decode_response(bytes).or_else(|| decode(bytes))
}

/// Encodes a message into `buffer`, which it clears first.
pub(crate) fn encode<T: serde::Serialize>(message: &T, buffer: &mut Vec<u8>) {
    buffer.clear();
    let encoded = postcard::serialize_with_flavor(message, Output(buffer));
    encoded.expect("a vector takes any message");
}

/// Returns the number of a greeting and the version that it names; `None` if the message is no
/// greeting. In all versions of the protocol a greeting begins so, whatever follows.
pub(crate) fn version_of_greeting(message: &[u8]) -> Option<(u32, u32)> {
    let ((id, call, version), _) = postcard::take_from_bytes::<(u32, u32, u32)>(message).ok()?;
    (call == HELLO).then_some((id, version))
}

/// Returns the version that the answer to a greeting names; `None` if the message is an error or
/// another answer. In all versions of the protocol it begins so, whatever follows.
pub(crate) fn version_of_welcome(message: &[u8]) -> Option<u32> {
    let begin = postcard::take_from_bytes::<(u32, u32, u32, u32)>(message).ok()?.0;
    let (_, result, answer, version) = begin;
    (result == OK && answer == WELCOME).then_some(version)
}

/// Decodes a message; `None` if it is no message of the type or has bytes behind it.
pub(crate) fn decode<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}

/// A value that is committed has two keys, of which one is its parent's.
const _: () = assert!(crate::node::MAX_BATCH * (2 * crate::format::MAX_KEY + 40) < MAX_MESSAGE);

//! *Errors* of a ring.

/// Why a ring can no longer be used. The other side violates the protocol, or its memory
/// was overwritten: close the connection, and make another one.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadRing {
    /// The other side's position is not one that it can have.
    #[error(
        "the {whose} of the ring is {position}, and {from} to {to} are possible: connect again"
    )]
    Position {
        /// Which position.
        whose: &'static str,
        /// The position.
        position: u64,
        /// The lowest possible one.
        from: u64,
        /// The highest possible one.
        to: u64,
    },
    /// The length of a message is more than the limit, or than the words that were sent.
    #[error(
        "a message of the ring has {len} bytes, and at most {limit} are possible: connect again"
    )]
    Length {
        /// The length in bytes.
        len: u64,
        /// The most bytes that the message can have.
        limit: u64,
    },
    /// The message to send is longer than the limit. The ring stays usable.
    #[error("a message of {len} bytes is too long: the limit is {limit}; send several")]
    TooLong {
        /// The length in bytes.
        len: usize,
        /// The limit.
        limit: usize,
    },
}

use thiserror::Error;

/// Reasons why a stream cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The stream has no byte.
    #[error("the compressed stream is empty; read the value again, or from elsewhere")]
    Empty,
    /// The first byte of the stream names no method.
    #[error(
        "the compressed stream begins with {0:#04x}, a method that this version does not know; \
         a newer version may read it"
    )]
    UnknownMethod(u8),
    /// A block is damaged.
    #[error("block {block} of the compressed stream {fault}; read the value again, or elsewhere")]
    Block {
        /// Its number, from 0.
        block: usize,
        /// The damage.
        fault: Fault,
    },
    /// The stream goes on after the value's last block.
    #[error("the compressed stream goes on for {0} bytes after the value; pass the value's length")]
    TrailingBytes(usize),
}

/// Damage of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The stream ends within it.
    #[error("needs {needed} bytes where {left} are left")]
    Truncated {
        /// Bytes of its next part.
        needed: usize,
        /// Bytes that the stream still has.
        left: usize,
    },
    /// It has a level of a width that does not exist.
    #[error("has a level of {0} bits instead of 1 to 4")]
    Width(u8),
    /// It has more levels than any block.
    #[error("has {0} levels, and at most 6 are possible")]
    Levels(u8),
    /// A level has more or fewer escapes than its header says.
    #[error("has a level of {symbols} symbols that does not have the {expected} escapes it names")]
    Escapes {
        /// Symbols of the level.
        symbols: usize,
        /// The number in the header.
        expected: usize,
    },
}

//! [`Buffer`]: memory for the symbols of a block.

/// Numbers of a block: three buffers of them and a coded block lie in a cache of the second level,
/// and a header takes a 300th of a coded block.
pub(super) const BLOCK_VALUES: usize = 8192;
/// Bytes behind the end that vectors may read and write.
pub(super) const SLACK: usize = 64;

/// Room for the symbols of a block.
pub(super) type Buffer = [u8; BLOCK_VALUES + SLACK];

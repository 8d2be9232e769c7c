//! *Checksum* of a value: it covers the key's digest, the length and the bytes, so the bytes of one
//! value never pass for those of another.

use crate::crc;
use crate::format::Digest;

/// Returns the checksum of a value under a key.
pub(super) fn checksum(digest: &Digest, value: &[u8]) -> u32 {
    crc::append(checksum_begin(digest, value.len() as u64), value)
}

/// Returns the checksum of what comes before the bytes of a value.
pub(super) fn checksum_begin(digest: &Digest, len: u64) -> u32 {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&digest.0);
    bytes[16..].copy_from_slice(&len.to_le_bytes());
    crc::append(0, &bytes)
}

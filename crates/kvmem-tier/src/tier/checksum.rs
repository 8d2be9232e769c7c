//! *Checksum* of a value: it covers the key's digest, the length and the bytes, so the bytes of one
//! value never pass for those of another.

use crate::crc;
use crate::format::{Digest, Entry};

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

/// Returns the CRC-32C of the bytes of a value alone. O(log length).
pub(super) fn value_checksum(entry: &Entry) -> u32 {
    // The checksum of two parts is that of the second one, and what the first one adds.
    let begin = checksum_begin(&entry.digest, entry.len);
    entry.checksum ^ crc::combine(begin, 0, entry.len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Extents, Hints};

    #[test]
    fn the_checksum_of_the_bytes_alone_is_known() {
        for len in [0, 1, 7, 4096, 100_000] {
            let value: Vec<u8> = (0..len).map(|at| (at * at / 3) as u8).collect();
            let digest = Digest([len as u8 ^ 5; 16]);
            let entry = Entry {
                digest,
                number: 1,
                extents: Extents::contiguous(0, len),
                checksum: checksum(&digest, &value),
                len,
                encoded: None,
                hints: Hints::default(),
                unverified: false,
            };
            assert_eq!(value_checksum(&entry), crc::append(0, &value), "{len}");
        }
    }
}

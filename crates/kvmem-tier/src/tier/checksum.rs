//! *Checksum* of a value: it covers the key's digest, the length and the bytes, so that the bytes
//! of one value never pass for those of another.

use crate::format::Digest;

/// Returns the checksum of a value under a key.
pub(super) fn checksum(digest: &Digest, value: &[u8]) -> u32 {
    checksum_append(checksum_begin(digest, value.len() as u64), value)
}

/// Returns the checksum of what comes before the bytes of a value.
pub(super) fn checksum_begin(digest: &Digest, len: u64) -> u32 {
    checksum_append(crc32c::crc32c(&digest.0), &len.to_le_bytes())
}

/// Returns the checksum of what has the checksum `sum`, and `bytes` behind it.
pub(super) fn checksum_append(sum: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(sum, bytes)
}

/// Returns the checksum of what has the checksum `sum`, and of `len` bytes behind it whose own
/// checksum is `behind`. O(log `len`).
pub(super) fn checksum_combine(sum: u32, behind: u32, len: usize) -> u32 {
    crc32c::crc32c_combine(sum, behind, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_checksum_of_the_whole() {
        let digest = Digest([7; 16]);
        let value: Vec<u8> = (0..10_000_u32).map(|i| (i * 31) as u8).collect();
        let whole = checksum(&digest, &value);
        for mid in [0, 1, 4096, 9999, 10_000] {
            let (first, second) = value.split_at(mid);
            let begin = checksum_begin(&digest, value.len() as u64);
            let appended = checksum_append(checksum_append(begin, first), second);
            let alone = checksum_append(0, second);
            let combined = checksum_combine(checksum_append(begin, first), alone, second.len());
            assert_eq!((appended, combined), (whole, whole), "{mid}");
        }
    }
}

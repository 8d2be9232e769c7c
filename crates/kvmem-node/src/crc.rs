//! *CRC-32C* of the index's words and of values.

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::Digest;

/// Returns the checksum of `bytes`.
pub(crate) fn of(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(Crc32Iscsi);
    digest.update(bytes);
    digest.finalize() as u32
}

/// Returns the checksum of words in little-endian order.
pub(crate) fn of_words(words: &[u64]) -> u32 {
    let mut digest = Digest::new(Crc32Iscsi);
    words.iter().for_each(|word| digest.update(&word.to_le_bytes()));
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    /// RFC 3720, appendix B.4.
    #[test]
    fn it_is_crc_32c() {
        assert_eq!(super::of(b"123456789"), 0xE306_9283);
        let words = [u64::from_le_bytes(*b"12345678"), 9];
        assert_eq!(super::of_words(&words), super::of(b"12345678\x09\0\0\0\0\0\0\0"));
    }
}

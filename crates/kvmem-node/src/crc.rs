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
    // An update takes longer than a word.
    let mut bytes = [0; 128];
    for words in words.chunks(bytes.len() / size_of::<u64>()) {
        let (eights, _) = bytes.as_chunks_mut();
        eights.iter_mut().zip(words).for_each(|(eight, word)| *eight = word.to_le_bytes());
        digest.update(&bytes[..size_of_val(words)]);
    }
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
        let many: Vec<u64> = (1..40).map(|number| number << 50 | number).collect();
        let bytes: Vec<u8> = many.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(super::of_words(&many), super::of(&bytes));
    }
}

//! *Trailer*: the bytes behind each value in a cluster, by which the tier verifies it.

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::checksum;

/// Bytes of a trailer.
pub(super) const TRAILER: usize = 32;

/// The begin of a trailer. The version is a part of it: a value with another trailer is a miss.
const MAGIC: &[u8; 8] = b"kvmem-n1";

/// Returns the trailer of a value. All numbers are little-endian.
pub(super) fn of(key: &[u8], value: &[u8]) -> [u8; TRAILER] {
    let mut trailer = [0; TRAILER];
    trailer[..8].copy_from_slice(MAGIC);
    trailer[8..16].copy_from_slice(&(value.len() as u64).to_le_bytes());
    trailer[16..20].copy_from_slice(&crc_of(value).to_le_bytes());
    trailer[20..24].copy_from_slice(&crc_of(key).to_le_bytes());
    trailer
}

/// Returns the CRC-32C of bytes.
fn crc_of(bytes: &[u8]) -> u32 {
    checksum(Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    /// RFC 3720, appendix B.4.
    #[test]
    fn it_is_crc_32c() {
        assert_eq!(super::crc_of(b"123456789"), 0xE306_9283);
    }

    /// Another trailer would make misses of all values that clusters have.
    #[test]
    fn a_trailer_has_the_bytes_of_version_1() {
        let trailer = super::of(b"123456789", b"value");
        assert_eq!(trailer[..16], *b"kvmem-n1\x05\0\0\0\0\0\0\0");
        assert_eq!(trailer[16..20], 0xE1E0_0363_u32.to_le_bytes());
        assert_eq!(trailer[20..], [0x83, 0x92, 0x06, 0xE3, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}

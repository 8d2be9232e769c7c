//! *Trailer*: the bytes behind each value in a cluster, by which the tier verifies it.

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::checksum;

/// Bytes of a trailer.
pub(super) const TRAILER: usize = 32;

/// The begin of a trailer. The version is a part of it: a value with another trailer is a miss.
const MAGIC: &[u8; 8] = b"kvmem-n1";
/// The begin of the trailer of an encoded value.
const MAGIC_2: &[u8; 8] = b"kvmem-n2";

/// Returns the trailer of a value that is stored as it is. All numbers are little-endian.
pub(super) fn of(key: &[u8], value: &[u8]) -> [u8; TRAILER] {
    let mut trailer = [0; TRAILER];
    trailer[..8].copy_from_slice(MAGIC);
    trailer[8..16].copy_from_slice(&(value.len() as u64).to_le_bytes());
    trailer[16..20].copy_from_slice(&crc_of(value).to_le_bytes());
    trailer[20..24].copy_from_slice(&crc_of(key).to_le_bytes());
    trailer
}

/// The trailer of an encoded value, version 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Trailer {
    /// Bytes before the trailer that it covers.
    pub(super) len: u64,
    /// Bytes of the value.
    pub(super) value_len: u64,
    sum: u32,
    key_sum: u32,
}

impl Trailer {
    /// Describes the namespace and the form of the value of a key.
    pub(super) fn of(key: &[u8], bytes: &[u8], value_len: u64) -> Trailer {
        let (len, sum, key_sum) = (bytes.len() as u64, crc_of(bytes), crc_of(key));
        Trailer { len, value_len, sum, key_sum }
    }

    pub(super) fn write(&self) -> [u8; TRAILER] {
        let mut trailer = [0; TRAILER];
        trailer[..8].copy_from_slice(MAGIC_2);
        trailer[8..16].copy_from_slice(&self.len.to_le_bytes());
        trailer[16..24].copy_from_slice(&self.value_len.to_le_bytes());
        trailer[24..28].copy_from_slice(&self.sum.to_le_bytes());
        trailer[28..].copy_from_slice(&self.key_sum.to_le_bytes());
        trailer
    }

    /// Reads a trailer; `None` if it is of another version.
    pub(super) fn read(trailer: &[u8; TRAILER]) -> Option<Trailer> {
        let number = |at: usize| u64::from_le_bytes(trailer[at..at + 8].try_into().expect("8"));
        let sums = number(24);
        trailer.starts_with(MAGIC_2).then(|| Trailer {
            len: number(8),
            value_len: number(16),
            sum: sums as u32,
            key_sum: (sums >> 32) as u32,
        })
    }
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

    #[test]
    fn a_trailer_of_an_encoded_value_has_the_bytes_of_version_2() {
        let trailer = super::Trailer::of(b"123456789", b"value", 0x0102);
        let bytes = trailer.write();
        assert_eq!(bytes[..16], *b"kvmem-n2\x05\0\0\0\0\0\0\0");
        assert_eq!(bytes[16..24], 0x0102_u64.to_le_bytes());
        assert_eq!(bytes[24..28], 0xE1E0_0363_u32.to_le_bytes());
        assert_eq!(bytes[28..], 0xE306_9283_u32.to_le_bytes());
        assert_eq!(super::Trailer::read(&bytes), Some(trailer));
        assert_eq!(super::Trailer::read(&super::of(b"123456789", b"value")), None);
    }
}

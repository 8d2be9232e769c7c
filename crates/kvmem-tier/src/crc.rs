//! *CRC-32C* of bytes, as the format names it.

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::{Digest, checksum_combine};

/// Value with which a calculation begins, and with which its end is combined.
const INVERTED: u64 = 0xFFFF_FFFF;

/// Returns the checksum of what has the checksum `sum`, and `bytes` behind it. The checksum of no
/// bytes is 0.
pub(crate) fn append(sum: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(Crc32Iscsi, u64::from(sum) ^ INVERTED);
    digest.update(bytes);
    digest.finalize() as u32
}

/// Returns the checksum of what has the checksum `sum`, and of `len` bytes behind it whose own
/// checksum is `behind`. O(log `len`).
pub(crate) fn combine(sum: u32, behind: u32, len: u64) -> u32 {
    checksum_combine(Crc32Iscsi, sum.into(), behind.into(), len) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4, and another implementation.
    #[test]
    fn it_is_the_crc_of_others() {
        assert_eq!(append(0, b"123456789"), 0xE306_9283);
        assert_eq!(append(0, &[0; 32]), 0x8A91_36AA);
        assert_eq!(append(0, &[0xFF; 32]), 0x62A8_AB43);
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| (i.wrapping_mul(i) / 7) as u8).collect();
        for from in [0, 1, 3, 64, 4095] {
            for len in [0, 1, 15, 16, 17, 63, 64, 255, 256, 1023, 4096, 70_000] {
                let bytes = &bytes[from..from + len];
                assert_eq!(append(0, bytes), crc32c::crc32c(bytes), "{from}, {len}");
                assert_eq!(append(7, bytes), crc32c::crc32c_append(7, bytes), "{from}, {len}");
            }
        }
    }

    #[test]
    fn parts_have_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|i| (i * 31) as u8).collect();
        let whole = append(5, &bytes);
        for mid in [0, 1, 4096, 9999, 10_000] {
            let (first, second) = bytes.split_at(mid);
            let first = append(5, first);
            assert_eq!(append(first, second), whole, "{mid}");
            assert_eq!(combine(first, append(0, second), second.len() as u64), whole, "{mid}");
        }
    }
}

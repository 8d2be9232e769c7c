//! *Trailer*: the bytes behind each value in a cluster, by which the server verifies it.

use crate::crc;

/// Bytes of a trailer.
pub(super) const TRAILER: usize = 32;

const MAGIC: &[u8; 8] = b"kvmem-n1";

/// Returns the trailer of a value. All numbers are little-endian.
pub(super) fn of(key: &[u8], value: &[u8]) -> [u8; TRAILER] {
    let mut trailer = [0; TRAILER];
    trailer[..8].copy_from_slice(MAGIC);
    trailer[8..16].copy_from_slice(&(value.len() as u64).to_le_bytes());
    trailer[16..20].copy_from_slice(&crc::of(value).to_le_bytes());
    trailer[20..24].copy_from_slice(&crc::of(key).to_le_bytes());
    trailer
}

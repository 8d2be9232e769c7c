//! *Payload*: bytes that say themselves whether they are what they should be.
//!
//! ```text
//!  ├── key, 8 B ──┼── a stream that follows from the key ──┼── CRC-32 of all before, 4 B ──┤
//! ```
//!
//! A page that another one was written over, in whole or in part, has another key or another checksum.

/// Bytes of the checksum.
const CRC: usize = 4;

/// Fills `bytes`, 12 or more, with the payload of `key`.
pub(super) fn write(key: u64, bytes: &mut [u8]) {
    let Some((body, crc)) = bytes.split_last_chunk_mut::<CRC>() else { return };
    let mut words = body.chunks_exact_mut(8);
    let mut state = key;
    for word in &mut words {
        word.copy_from_slice(&state.to_le_bytes());
        // Xorshift after a step of Weyl's sequence: quick, and different for each key.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state ^= state >> 29;
    }
    let rest = words.into_remainder();
    rest.copy_from_slice(&state.to_le_bytes()[..rest.len()]);
    *crc = crc32fast::hash(body).to_le_bytes();
}

/// Whether `bytes` are the payload of `key`, unharmed.
pub(super) fn is_whole(key: u64, bytes: &[u8]) -> bool {
    let Some((body, crc)) = bytes.split_last_chunk::<CRC>() else { return false };
    body.starts_with(&key.to_le_bytes()) && crc32fast::hash(body).to_le_bytes() == *crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_byte_is_noticed() {
        for len in [12, 16, 17, 100, 4099] {
            let mut bytes = vec![0; len];
            write(7, &mut bytes);
            assert!(is_whole(7, &bytes));
            assert!(!is_whole(8, &bytes), "another key's");
            for at in 0..len {
                bytes[at] ^= 1;
                assert!(!is_whole(7, &bytes), "byte {at} of {len}");
                bytes[at] ^= 1;
            }
        }
    }

    #[test]
    fn another_payload_over_a_part_is_noticed() {
        let mut bytes = vec![0; 8192];
        write(1, &mut bytes);
        write(2, &mut bytes[4096..]);
        assert!(!is_whole(1, &bytes));
        assert!(is_whole(2, &bytes[4096..]));
    }
}

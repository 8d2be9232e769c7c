//! *BLAKE2b* (RFC 7693) of 32 bytes, for the keys of prefixes.
//!
//! A key decides whose KV cache a request reads, and its user chooses the tokens. Therefore the
//! keys need a hash for which nobody can find two inputs of one value; the hashes of tables are
//! not that. This one is the fastest of its kind without special instructions, is in the standard
//! library of Python, and takes a page of code, so the crate needs no dependency for it.

/// Length of a digest in bytes.
pub(super) const DIGEST_BYTES: usize = 32;

/// Length of a block of the input in bytes.
const BLOCK: usize = 128;

const IV: [u64; 8] = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];

/// The order of the words of a block in each round. Rounds 10 and 11 repeat the first two.
const SIGMA: [[usize; 16]; 10] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
    [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
    [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
    [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
    [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
    [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
    [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
    [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

/// A hash over input that comes in parts.
#[derive(Clone)]
pub(super) struct Blake2b {
    state: [u64; 8],
    /// Input that is not compressed yet: the last block is compressed in another way.
    block: [u8; BLOCK],
    filled: usize,
    /// Bytes compressed.
    count: u64,
}

impl Blake2b {
    /// Begins a hash. Hashes of different persons differ; zeros are none.
    pub(super) fn new(person: &[u8; 16]) -> Blake2b {
        let mut state = IV;
        // The parameters: the length of the digest, no key, no tree.
        state[0] ^= 0x0101_0000 ^ DIGEST_BYTES as u64;
        let (low, high) = person.split_at(8);
        state[6] ^= word(low);
        state[7] ^= word(high);
        Blake2b { state, block: [0; BLOCK], filled: 0, count: 0 }
    }

    /// Adds input.
    pub(super) fn update(&mut self, mut input: &[u8]) {
        while !input.is_empty() {
            if self.filled == BLOCK {
                self.count += BLOCK as u64;
                let block = self.block;
                self.compress(&block, false);
                self.filled = 0;
            }
            let len = input.len().min(BLOCK - self.filled);
            let (now, later) = input.split_at(len);
            self.block[self.filled..self.filled + len].copy_from_slice(now);
            self.filled += len;
            input = later;
        }
    }

    /// Returns the digest.
    pub(super) fn finish(mut self) -> [u8; DIGEST_BYTES] {
        self.count += self.filled as u64;
        let mut block = self.block;
        block[self.filled..].fill(0);
        self.compress(&block, true);
        let mut digest = [0; DIGEST_BYTES];
        for (bytes, word) in digest.chunks_exact_mut(8).zip(self.state) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }

    fn compress(&mut self, block: &[u8; BLOCK], is_last: bool) {
        let mut words = [0; 16];
        for (word_of, bytes) in words.iter_mut().zip(block.chunks_exact(8)) {
            *word_of = word(bytes);
        }
        let mut v = [0; 16];
        v[..8].copy_from_slice(&self.state);
        v[8..].copy_from_slice(&IV);
        // The upper half of the count is 0: no input has 2^64 bytes.
        v[12] ^= self.count;
        if is_last {
            v[14] = !v[14];
        }
        for round in 0..12 {
            let order = &SIGMA[round % 10];
            let m = |at: usize| words[order[at]];
            mix(&mut v, [0, 4, 8, 12], m(0), m(1));
            mix(&mut v, [1, 5, 9, 13], m(2), m(3));
            mix(&mut v, [2, 6, 10, 14], m(4), m(5));
            mix(&mut v, [3, 7, 11, 15], m(6), m(7));
            mix(&mut v, [0, 5, 10, 15], m(8), m(9));
            mix(&mut v, [1, 6, 11, 12], m(10), m(11));
            mix(&mut v, [2, 7, 8, 13], m(12), m(13));
            mix(&mut v, [3, 4, 9, 14], m(14), m(15));
        }
        for (at, word) in self.state.iter_mut().enumerate() {
            *word ^= v[at] ^ v[at + 8];
        }
    }
}

#[inline(always)]
fn mix(v: &mut [u64; 16], [a, b, c, d]: [usize; 4], x: u64, y: u64) {
    v[a] = v[a].wrapping_add(v[b]).wrapping_add(x);
    v[d] = (v[d] ^ v[a]).rotate_right(32);
    v[c] = v[c].wrapping_add(v[d]);
    v[b] = (v[b] ^ v[c]).rotate_right(24);
    v[a] = v[a].wrapping_add(v[b]).wrapping_add(y);
    v[d] = (v[d] ^ v[a]).rotate_right(16);
    v[c] = v[c].wrapping_add(v[d]);
    v[b] = (v[b] ^ v[c]).rotate_right(63);
}

/// Returns the number that 8 bytes are, the lowest first.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(digest: [u8; DIGEST_BYTES]) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn digests_are_those_of_pythons_hashlib() {
        let long: Vec<u8> = (0..1000_u32).map(|at| (at * 7 % 251) as u8).collect();
        // hashlib.blake2b(input, digest_size=32, person=person).hexdigest()
        for (input, person, digest) in [
            (&b""[..], &[0; 16], EMPTY),
            (b"abc", &[0; 16], ABC),
            (&long[..128], b"kvmem-prefix-key", ONE_BLOCK),
            (&long[..129], b"kvmem-prefix-key", MORE),
            (&long, b"kvmem-prefix-key", LONG),
        ] {
            let mut hash = Blake2b::new(person);
            hash.update(input);
            assert_eq!(hex(hash.clone().finish()), digest);
            // In parts, it is the same.
            for part in [1, 7, 127, 128, 129] {
                let mut hash = Blake2b::new(person);
                input.chunks(part).for_each(|part| hash.update(part));
                assert_eq!(hex(hash.finish()), digest);
            }
        }
    }

    const EMPTY: &str = "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8";
    const ABC: &str = "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319";
    const ONE_BLOCK: &str = "3be6d9f01feed504a5f96ea379ee2bb19b9be308f7fd46431504f412b6357ec5";
    const MORE: &str = "7815dc50f7da823d51761d84b234aeb2ef215178395a2eb6626443dccbe38dce";
    const LONG: &str = "c0aedde627be22808022d5d1bdee5e89d9acaaefb21a2f267af608340762a49e";
}

//! *Payload*: the contents of objects, which prove that no two objects share a byte.
//!
//! A fault of an allocator of offsets is silent: two blocks that share a byte look fine until one
//! of them is read. Every object of a backed replay, or of the tour, therefore gets a payload of
//! its own, and its checksum is compared on every hit. A payload is 16 bytes that name the object,
//! and then one of 64 pieces of a random stream. The checksums of the pieces are known beforehand,
//! so a write is a copy, and a replay can be compared with a plain copy. Pieces begin at different
//! places of the stream, so two payloads never have the same bytes.

use std::ops::Range;
use std::sync::OnceLock;

use super::object::ObjectId;

/// Number of pieces of the stream.
const PIECES: usize = 64;
/// Distance of their beginnings. Odd, so words of two pieces are never aligned alike.
const APART: usize = 4093;
/// Bytes that name the object.
const STAMP: usize = 16;

/// All payloads of the objects of a block.
pub struct Payloads {
    stream: Vec<u8>,
    objects: Vec<Object>,
    /// Checksum of each piece of each kind, without the stamp, computed on first use.
    sums: Vec<[OnceLock<u32>; PIECES]>,
}

/// An object of a block.
struct Object {
    len: usize,
    /// Its beginning in the block, if objects follow each other.
    at: usize,
    /// Objects of one length are of one kind.
    kind: usize,
}

/// A payload that differs from what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Checksum of the written bytes.
    pub written: u32,
    /// Checksum of the bytes found.
    pub found: u32,
}

impl Payloads {
    /// Makes the payloads of all blocks whose objects have these sizes. The stream is 256 KiB
    /// longer than the longest object.
    pub fn new(sizes: &[u64]) -> Self {
        let mut kinds: Vec<u64> = sizes.to_vec();
        kinds.sort_unstable();
        kinds.dedup();
        let kind = |size: &u64| kinds.partition_point(|kind| kind < size);
        let mut end = 0;
        let objects = sizes.iter().map(|size| {
            let (at, len) = (end, *size as usize);
            end += len;
            Object { len, at, kind: kind(size) }
        });
        let objects = objects.collect();
        let longest = kinds.last().map_or(0, |size| *size as usize);
        let mut state = 0u64;
        let words = (longest + PIECES * APART).div_ceil(8);
        let stream = (0..words)
            .flat_map(|_| {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                mix(state).to_le_bytes()
            })
            .collect();
        let sums = kinds.iter().map(|_| [const { OnceLock::new() }; PIECES]).collect();
        Payloads { stream, objects, sums }
    }

    /// Returns the object's piece of the stream, without the stamp.
    pub fn piece(&self, id: ObjectId) -> &[u8] {
        let Object { len, .. } = self.objects[id.number as usize];
        &self.stream[number(id) * APART..][..len]
    }

    /// Returns a buffer for the objects of a block, one after the other.
    pub fn block(&self) -> Vec<u8> {
        vec![0; self.objects.last().map_or(0, |last| last.at + last.len)]
    }

    /// Returns the object's range in such a buffer.
    pub fn within(&self, id: ObjectId) -> Range<usize> {
        let Object { at, len, .. } = self.objects[id.number as usize];
        at..at + len
    }

    /// Writes the payload of an object.
    pub fn write(&self, id: ObjectId, bytes: &mut [u8]) {
        bytes.copy_from_slice(self.piece(id));
        let stamp = stamp(id);
        let len = bytes.len().min(STAMP);
        bytes[..len].copy_from_slice(&stamp[..len]);
    }

    /// Compares the bytes of an object, or a prefix of them, with what was written.
    ///
    /// # Errors
    /// [`Damage`] if they differ.
    pub fn verify(&self, id: ObjectId, bytes: &[u8]) -> Result<(), Damage> {
        let (head, body) = bytes.split_at(bytes.len().min(STAMP));
        let Object { kind, len, .. } = self.objects[id.number as usize];
        let of_piece = || crc32fast::hash(&self.piece(id)[len.min(STAMP)..]);
        let sum = self.sums[kind][number(id)].get_or_init(of_piece);
        if bytes.len() == len && head == &stamp(id)[..head.len()] && crc32fast::hash(body) == *sum {
            return Ok(());
        }
        let mut written = self.piece(id).to_vec();
        self.write(id, &mut written);
        Err(Damage { written: crc32fast::hash(&written), found: crc32fast::hash(bytes) })
    }
}

fn stamp(id: ObjectId) -> [u8; STAMP] {
    let mut stamp = [0; STAMP];
    stamp[..8].copy_from_slice(&mix(id.block).to_le_bytes());
    stamp[8..].copy_from_slice(&mix(!u64::from(id.number)).to_le_bytes());
    stamp
}

/// Returns the piece of an object.
fn number(id: ObjectId) -> usize {
    mix(id.block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(id.number)) as usize % PIECES
}

/// The output function of SplitMix64 (Steele, Lea, Flood: *Fast splittable pseudorandom number
/// generators*, 2014).
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payloads() -> Payloads {
        Payloads::new(&[1000, 13, 1000])
    }

    #[test]
    fn an_object_reads_back_as_it_was_written() {
        let payloads = payloads();
        for (number, len) in [(0, 1000), (1, 13), (2, 1000)] {
            let id = ObjectId { block: 7, number };
            let mut bytes = vec![0; len];
            payloads.write(id, &mut bytes);
            assert_eq!(payloads.verify(id, &bytes), Ok(()));
            for at in 0..len {
                bytes[at] ^= 1;
                let damage = payloads.verify(id, &bytes).unwrap_err();
                assert_ne!(damage.written, damage.found, "byte {at} of {len}");
                bytes[at] ^= 1;
                assert!(payloads.verify(id, &bytes[..at]).is_err(), "{at} bytes of {len}");
            }
            assert_eq!(payloads.verify(id, &bytes), Ok(()));
        }
    }

    #[test]
    fn objects_differ_by_block_and_by_number() {
        let payloads = payloads();
        let mut bytes = vec![0; 1000];
        payloads.write(ObjectId { block: 1, number: 0 }, &mut bytes);
        for other in [ObjectId { block: 1, number: 2 }, ObjectId { block: 2, number: 0 }] {
            assert!(payloads.verify(other, &bytes).is_err(), "{other:?}");
        }
    }

    #[test]
    fn one_byte_of_a_neighbour_is_found() {
        let payloads = payloads();
        let mut memory = vec![0; 2000];
        for block in 0..500 {
            let (id, next) =
                (ObjectId { block, number: 0 }, ObjectId { block: block + 1, number: 2 });
            payloads.write(id, &mut memory[..1000]);
            payloads.write(next, &mut memory[984..1984]);
            assert!(payloads.verify(id, &memory[..1000]).is_err(), "{block}");
            assert_eq!(payloads.verify(next, &memory[984..1984]), Ok(()));
        }
    }
}

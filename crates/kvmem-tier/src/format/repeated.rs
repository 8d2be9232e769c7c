//! *Repeated keys*: what a block of the journal says about those before it.
//!
//! A block of the journal may be damaged, and those behind it whole. Their changes are known then,
//! and those of the damaged block are not: it may have removed a value, or replaced it. Each block
//! therefore has, behind its records, the digests of the keys that the blocks before it change: of
//! the block just before it always, and of as many others as there is room for. A reader that
//! misses a block takes its keys from a later one, and finds no value under them.
//!
//! A block of one change has room for some 230 others; one that is full has room for the keys of
//! the full one before it, and 47 records of its own.

use std::collections::VecDeque;

use super::BLOCK;
use super::entry::{Change, Digest, RECORD};

pub(super) const HEADER: usize = 64;
/// The records that fit into a block.
pub const RECORDS_PER_BLOCK: usize = (BLOCK - HEADER) / RECORD;

const DIGEST: usize = size_of::<Digest>();

/// Keys that blocks of a journal change, which a later block repeats.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Repeated {
    /// The digests of each block, the last ones of the block just before.
    counts: Vec<u8>,
    digests: Vec<Digest>,
}

impl Repeated {
    /// Returns the number of blocks, the last of which is the one just before.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.counts.len()
    }

    /// Returns the digests of the block that lies `distance` blocks before this one; `None` if this
    /// one does not repeat them. O(blocks).
    #[must_use]
    pub fn of_block_before(&self, distance: usize) -> Option<&[Digest]> {
        let place = self.counts.len().checked_sub(distance).filter(|_| distance > 0)?;
        let (before, of_block) = self.counts.split_at(place);
        let start: usize = before.iter().map(|&count| usize::from(count)).sum();
        self.digests.get(start..start + usize::from(of_block[0]))
    }

    /// Returns the bytes that these take in a block.
    pub(super) fn bytes(&self) -> usize {
        bytes_of(self.counts.len(), self.digests.len())
    }

    /// Writes these to the end of a block.
    pub(super) fn write(&self, block: &mut [u8]) {
        let digests = BLOCK - self.bytes();
        let counts = BLOCK - self.counts.len();
        for (bytes, digest) in block[digests..counts].chunks_exact_mut(DIGEST).zip(&self.digests) {
            bytes.copy_from_slice(&digest.0);
        }
        block[counts..].copy_from_slice(&self.counts);
    }

    /// Reads those of `blocks` blocks from the bytes behind the records of a block; `None` if these
    /// have no room for them.
    pub(super) fn read(bytes: &[u8], blocks: u32) -> Option<Repeated> {
        let counts = bytes.len().checked_sub(usize::try_from(blocks).ok()?)?;
        let (bytes, counts) = bytes.split_at(counts);
        let digests: usize = counts.iter().map(|&count| usize::from(count)).sum();
        let (bytes, _) = bytes[bytes.len().checked_sub(digests * DIGEST)?..].as_chunks();
        let digests = bytes.iter().map(|&bytes| Digest(bytes)).collect();
        Some(Repeated { counts: counts.to_vec(), digests })
    }
}

/// Returns the bytes that the digests of some blocks take.
fn bytes_of(blocks: usize, digests: usize) -> usize {
    blocks + digests * DIGEST
}

/// A block of the journal that is to be written.
pub(crate) struct PackedBlock<'a> {
    pub(crate) changes: &'a [Change],
    pub(crate) repeated: Repeated,
}

/// The keys of the last blocks of a journal, which the next ones repeat.
#[derive(Default)]
pub(crate) struct RecentKeys {
    counts: VecDeque<u8>,
    digests: VecDeque<Digest>,
}

impl RecentKeys {
    /// Divides changes into the next blocks of the journal. The records of a change stay in one
    /// block, so a block is of use on its own.
    pub(crate) fn pack<'a>(&mut self, mut changes: &'a [Change]) -> Vec<PackedBlock<'a>> {
        let mut blocks = Vec::new();
        while !changes.is_empty() {
            let before = self.counts.back().map_or(0, |&count| bytes_of(1, count.into()));
            let max_records = (BLOCK - HEADER - before) / RECORD;
            let mut records = 0;
            let fits = |change: &&Change| {
                let all = records + change.records();
                let fits = all <= max_records;
                records = if fits { all } else { records };
                fits
            };
            let (block, behind) = changes.split_at(changes.iter().take_while(fits).count());
            changes = behind;
            let repeated = self.repeated(BLOCK - HEADER - records * RECORD);
            blocks.push(PackedBlock { changes: block, repeated });
            self.add(block);
        }
        blocks
    }

    /// Returns the keys of the last blocks, as many as fit into `room` bytes.
    fn repeated(&self, room: usize) -> Repeated {
        let (mut blocks, mut digests) = (0, 0);
        for &count in self.counts.iter().rev() {
            let more = digests + usize::from(count);
            if bytes_of(blocks + 1, more) > room {
                break;
            }
            (blocks, digests) = (blocks + 1, more);
        }
        let counts = self.counts.range(self.counts.len() - blocks..).copied().collect();
        let digests = self.digests.range(self.digests.len() - digests..).copied().collect();
        Repeated { counts, digests }
    }

    /// Adds the keys of a block.
    fn add(&mut self, changes: &[Change]) {
        let before = self.digests.len();
        self.digests.extend(changes.iter().filter_map(Change::digest));
        self.counts.push_back((self.digests.len() - before) as u8);
        // No block has room for more. Each has room for the keys of one block.
        while bytes_of(self.counts.len(), self.digests.len()) > BLOCK - HEADER - RECORD {
            let oldest = self.counts.pop_front().unwrap_or_default();
            self.digests.drain(..usize::from(oldest));
        }
    }
}

// A block has fewer changes than a byte counts, and one whose predecessor is full has room for any
// change.
const _: () = assert!(
    RECORDS_PER_BLOCK <= u8::MAX as usize
        && HEADER + 2 * RECORD + 1 + RECORDS_PER_BLOCK * DIGEST <= BLOCK
);

#[cfg(test)]
mod tests {
    use super::super::journal::{JournalBlock, read_journal_block, write_journal_block};
    use super::*;

    fn removed(number: u64) -> Change {
        Change::Removed(Digest(u128::from(number).to_le_bytes()), number)
    }

    /// Every block, of whatever length, has the keys of the one before it, and as many others as
    /// have room.
    #[test]
    fn each_block_repeats_the_keys_of_the_one_before() {
        for per_call in [1, 2, 7, 40, 63, 64, 200] {
            let mut recent = RecentKeys::default();
            let mut blocks: Vec<JournalBlock> = Vec::new();
            let mut number = 0;
            while number < 3000 {
                let changes: Vec<Change> = (number..number + per_call).map(removed).collect();
                number += per_call;
                for PackedBlock { changes, repeated } in recent.pack(&changes) {
                    let index = blocks.len() as u32;
                    let changes = changes.to_vec();
                    let (file, epoch, durable_blocks) = ([7; 16], 3, index / 2);
                    let block =
                        JournalBlock { file, epoch, index, changes, repeated, durable_blocks };
                    let mut bytes = [0xFF; BLOCK];
                    write_journal_block(&block, &mut bytes);
                    assert_eq!(read_journal_block(&bytes).as_ref(), Some(&block));
                    blocks.push(block);
                }
            }
            assert!(recent.counts.len() < 240, "no block repeats more");
            let all: usize = blocks.iter().map(|block| block.changes.len()).sum();
            assert_eq!(all as u64, number);
            for (index, block) in blocks.iter().enumerate() {
                let reach = block.repeated.blocks();
                assert!(reach >= index.min(1), "{per_call}: block {index}");
                for distance in 1..=reach {
                    let before = blocks[index - distance].changes.iter();
                    let expected: Vec<Digest> = before.filter_map(Change::digest).collect();
                    assert_eq!(block.repeated.of_block_before(distance), Some(&expected[..]));
                }
                assert_eq!(block.repeated.of_block_before(reach + 1), None);
                assert_eq!(block.repeated.of_block_before(0), None);
            }
            if per_call == 1 {
                assert!(blocks[500].repeated.blocks() > 230);
            }
        }
    }

    #[test]
    fn blocks_are_repeated_as_long_as_they_fit() {
        let mut recent = RecentKeys::default();
        recent.add(&[removed(1)]);
        recent.add(&[removed(2), removed(3)]);
        let all = bytes_of(2, 3);
        for (room, blocks) in [(all, 2), (all - 1, 1), (bytes_of(1, 2), 1), (bytes_of(1, 2) - 1, 0)]
        {
            let repeated = recent.repeated(room);
            assert_eq!(repeated.blocks(), blocks, "{room}");
            assert!(repeated.bytes() <= room);
        }
        // These fill a block with one record to its last byte, so the first one stays.
        let mut recent = RecentKeys::default();
        for number in 0..224 {
            recent.add(&[removed(1), removed(2)][..1 + usize::from(number < 10)]);
        }
        let room = BLOCK - HEADER - RECORD;
        assert_eq!(bytes_of(224, 234), room);
        assert_eq!(recent.repeated(room).blocks(), 224);
        recent.add(&[removed(1)]);
        assert_eq!(recent.counts.len(), 224, "the first one has no room any more");
    }

    #[test]
    fn keys_that_have_no_room_make_no_block() {
        assert_eq!(Repeated::read(&[1; 16], 1), None);
        assert_eq!(Repeated::read(&[1; 17], 1).unwrap().blocks(), 1);
        assert_eq!(Repeated::read(&[1; 17], 18), None);
        assert_eq!(Repeated::read(&[], 0), Some(Repeated::default()));
    }
}

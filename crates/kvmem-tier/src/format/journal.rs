//! *Journal*: blocks of changes, written one after the other. The blocks of a
//! [checkpoint](super::checkpoint) have the same form and another beginning.
//!
//! Each block of a journal [repeats](super::repeated) the keys of the blocks before it, and says
//! how many of the first blocks were durable when it was written.

use super::BLOCK;
use super::block::{Fields, Reader, is_sealed, seal};
use super::entry::{Change, RECORD};
use super::repeated::{HEADER, PackedBlock, RECORDS_PER_BLOCK, Repeated};

const MAGIC: [u8; 4] = *b"KvJ1";
/// The field of the block's checksum.
const CHECKSUM: usize = 4;

/// A block of the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalBlock {
    /// The file to which it belongs.
    pub file: [u8; 16],
    /// Of which journal of the file it is part. Each has a higher number than the one before.
    pub epoch: u64,
    /// Its place in the journal.
    pub index: u32,
    /// The changes, in their order: at most [`RECORDS_PER_BLOCK`] records.
    pub changes: Vec<Change>,
    /// The keys of blocks before it; none in a checkpoint.
    pub repeated: Repeated,
    /// The first blocks of this journal that were durable when this one was written.
    pub durable_blocks: u32,
}

/// Divides changes into those of one block of a checkpoint each. The records of a change stay in
/// one block, so a block is of use on its own.
pub(crate) fn block_parts(mut changes: &[Change]) -> impl Iterator<Item = &[Change]> {
    std::iter::from_fn(move || {
        let mut records = 0;
        let fits = |change: &&Change| {
            records += change.records();
            records <= RECORDS_PER_BLOCK
        };
        let count = changes.iter().take_while(fits).count();
        let (block, behind) = changes.split_at(count);
        changes = behind;
        (count > 0).then_some(block)
    })
}

/// Writes a block.
///
/// # Panics
/// If there are too many changes, or `bytes` is not a block.
pub fn write_journal_block(block: &JournalBlock, bytes: &mut [u8]) {
    let JournalBlock { file, epoch, index, changes, repeated, durable_blocks } = block;
    let of = BlockOf { file: *file, epoch: *epoch, index: *index };
    write_block(MAGIC, of, changes, (repeated, *durable_blocks), bytes);
}

/// Writes a packed block of a journal, of which `durable_blocks` blocks are durable.
pub(crate) fn write_packed(
    of: BlockOf,
    packed: &PackedBlock<'_>,
    durable_blocks: u32,
    bytes: &mut [u8],
) {
    write_block(MAGIC, of, packed.changes, (&packed.repeated, durable_blocks), bytes);
}

/// Reads a block; `None` if it is none, or damaged.
#[must_use]
pub fn read_journal_block(bytes: &[u8]) -> Option<JournalBlock> {
    read_block(MAGIC, bytes)
}

/// Says which block one is.
#[derive(Clone, Copy)]
pub(crate) struct BlockOf {
    pub(crate) file: [u8; 16],
    pub(crate) epoch: u64,
    pub(crate) index: u32,
}

/// Writes a block that begins with `magic`, with what it repeats, and the blocks that are durable.
pub(super) fn write_block(
    magic: [u8; 4],
    BlockOf { file, epoch, index }: BlockOf,
    changes: &[Change],
    (repeated, durable_blocks): (&Repeated, u32),
    bytes: &mut [u8],
) {
    let records: usize = changes.iter().map(Change::records).sum();
    let at = HEADER + records * RECORD;
    assert!(at + repeated.bytes() <= BLOCK && bytes.len() == BLOCK);
    bytes.fill(0);
    let mut fields = Fields::new(bytes);
    fields.put(&magic);
    fields.put(&[0; 4]);
    fields.put(&file);
    fields.put(&epoch.to_le_bytes());
    fields.put(&index.to_le_bytes());
    fields.put(&(records as u32).to_le_bytes());
    fields.put(&(repeated.blocks() as u32).to_le_bytes());
    fields.put(&durable_blocks.to_le_bytes());
    let mut at = HEADER;
    for change in changes {
        change.write(&mut bytes[at..]);
        at += change.records() * RECORD;
    }
    repeated.write(bytes);
    seal(bytes, CHECKSUM);
}

/// Reads a block that begins with `magic`; `None` if it is none, or damaged.
pub(super) fn read_block(magic: [u8; 4], bytes: &[u8]) -> Option<JournalBlock> {
    if bytes.len() != BLOCK || bytes[..4] != magic || !is_sealed(bytes, CHECKSUM) {
        return None;
    }
    let mut fields = Reader(&bytes[8..]);
    let (file, epoch, index) = (fields.take(), fields.u64(), fields.u32());
    let count = fields.u32() as usize;
    if count > RECORDS_PER_BLOCK {
        return None;
    }
    let (repeated_blocks, durable_blocks) = (fields.u32(), fields.u32());
    let repeated = Repeated::read(&bytes[HEADER + count * RECORD..], repeated_blocks)?;
    let mut records = bytes[HEADER..].chunks_exact(RECORD).take(count);
    let mut changes = Vec::with_capacity(count);
    while records.len() > 0 {
        changes.push(Change::read(&mut records)?);
    }
    Some(JournalBlock { file, epoch, index, changes, repeated, durable_blocks })
}

#[cfg(test)]
mod tests {
    use super::super::entry::{Digest, Entry, Extent, Extents, Hints};
    use super::*;

    fn stored(number: u64, extents: u32) -> Change {
        let parts: Vec<Extent> =
            (0..extents).map(|part| Extent { start: 10 * part, blocks: 1 }).collect();
        Change::Stored(Entry {
            digest: Digest([number as u8; 16]),
            number,
            extents: Extents::of(&parts).unwrap(),
            checksum: 1,
            len: u64::from(extents) * BLOCK as u64,
            encoded: None,
            hints: Hints::default(),
            unverified: true,
        })
    }

    #[test]
    fn the_records_of_a_change_stay_in_one_block() {
        // 62 records and two more do not fit; 61 and two do.
        for (before, lens) in [(61, &[62][..]), (62, &[62, 1]), (63, &[63, 1])] {
            let mut changes: Vec<Change> = (0..before).map(|number| stored(number, 1)).collect();
            changes.push(stored(before, 4));
            let blocks: Vec<&[Change]> = block_parts(&changes).collect();
            assert_eq!(blocks.iter().map(|block| block.len()).collect::<Vec<_>>(), lens);
            for (index, block) in (0..).zip(&blocks) {
                let (changes, repeated) = (block.to_vec(), Repeated::default());
                let (file, durable_blocks) = ([1; 16], index);
                let block =
                    JournalBlock { file, epoch: 2, index, changes, repeated, durable_blocks };
                let mut bytes = [0xFF; BLOCK];
                write_journal_block(&block, &mut bytes);
                assert_eq!(read_journal_block(&bytes), Some(block));
            }
        }
        assert_eq!(block_parts(&[]).count(), 0);
    }

    fn block(changes: Vec<Change>, repeated: Repeated) -> JournalBlock {
        JournalBlock { file: [1; 16], epoch: 2, index: 0, changes, repeated, durable_blocks: 0 }
    }

    #[test]
    fn a_block_is_whole_sealed_and_of_its_kind() {
        let block = block(vec![stored(3, 2)], Repeated::default());
        let mut bytes = [0; BLOCK];
        write_journal_block(&block, &mut bytes);
        assert_eq!(read_journal_block(&bytes), Some(block));
        assert_eq!(read_block(*b"KvC1", &bytes), None, "it belongs to a journal");
        assert_eq!(read_journal_block(&bytes[..BLOCK - 1]), None);
        bytes[BLOCK - 1] ^= 1;
        assert_eq!(read_journal_block(&bytes), None, "its checksum is another one");
    }

    /// A block may be sealed by a program that knows more, or by an attacker.
    #[test]
    fn repeated_keys_do_not_reach_into_the_records() {
        let changes = |count| (0..count).map(|number| stored(number, 1)).collect();
        let mut bytes = [0; BLOCK];
        write_journal_block(&block(changes(62), Repeated::default()), &mut bytes);
        // 62 records leave 64 bytes: the counts of 64 blocks without keys, and no more.
        for (blocks, is_read) in [(64_u32, true), (65, false)] {
            bytes[40..44].copy_from_slice(&blocks.to_le_bytes());
            seal(&mut bytes, CHECKSUM);
            assert_eq!(read_journal_block(&bytes).is_some(), is_read, "{blocks}");
        }
    }

    #[test]
    #[should_panic(expected = "<= BLOCK")]
    fn more_records_than_fit_are_not_written() {
        let changes: Vec<Change> =
            (0..RECORDS_PER_BLOCK as u64 + 1).map(|it| stored(it, 1)).collect();
        write_journal_block(&block(changes, Repeated::default()), &mut [0; BLOCK]);
    }
}

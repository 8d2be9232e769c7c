//! *Superblock*: what the file is, and where its index begins.

use std::io;

use thiserror::Error;

use super::BLOCK;
use super::block::{Fields, Reader, is_sealed, seal};
use super::layout::{LAYOUT, Layout};
use super::namespaces::{NAMESPACES, Namespaces};
use super::owner::{OWNER, Owner};

const MAGIC: [u8; 8] = *b"KvmemDsk";
/// The last version of the format: values may be encoded.
pub const VERSION: u32 = 3;
/// The version of a file in which no value is encoded: programs of before read it.
pub const UNENCODED_VERSION: u32 = 2;
/// The first version that is read. In it, a value has one extent, whose record is the same.
const OLDEST: u32 = 1;
/// The field of the checksum.
const CHECKSUM: usize = 12;
const HEADER: usize = 128;
/// Where the owner begins.
const OF_OWNER: usize = 256;
/// Where the namespaces begin.
const OF_NAMESPACES: usize = OF_OWNER + OWNER;

/// A superblock. There are two copies, written alternately; the one with the higher generation
/// counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The version of the format. It is written as [`UNENCODED_VERSION`] at least.
    pub version: u32,
    /// The identity of the file, chosen at random when it was made.
    pub file: [u8; 16],
    /// The key of the digests, chosen at random when the file was made.
    pub key: [u8; 16],
    /// How often a superblock was written.
    pub generation: u64,
    /// The journal in which changes after the checkpoint begin: its number and its place, 0 or 1.
    pub epoch: u64,
    /// Which of the two journals that is.
    pub journal: u32,
    /// Which of the two checkpoints is valid.
    pub checkpoint: u32,
    /// Blocks of the checkpoint.
    pub checkpoint_blocks: u64,
    /// The number of the next change, at the time of the checkpoint.
    pub next_number: u64,
    /// Bytes of the file.
    pub len: u64,
    /// Bytes that were written to the file since [`since`](Self::since), up to the checkpoint.
    pub lifetime_bytes: u64,
    /// When the file was made, or first opened by a program that counts what it writes: in seconds
    /// since 1970. 0: not yet.
    pub since: u64,
    /// The first blocks of the journal, whose changes `lifetime_bytes` has counted.
    pub counted_blocks: u32,
    /// The parts of the file.
    pub layout: Layout,
    /// The process that has the tier open, or that was killed while it had; none if the tier was
    /// closed, and none of programs that leave no name.
    pub owner: Option<Owner>,
    /// The namespaces of encrypted values.
    pub namespaces: Namespaces,
}

/// The reason why a block is no superblock that can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// The block does not begin as a superblock does.
    #[error("it does not begin with \"KvmemDsk\": it is no disk tier")]
    Foreign,
    /// The block is of a later version, or of one that no program has written.
    #[error(
        "its format has version {found}, and this program reads versions {OLDEST} to {VERSION}: {}",
        if *found > VERSION { "use a newer kvmem" } else { "use the kvmem that made it" }
    )]
    Version {
        /// The version that it names.
        found: u32,
    },
    /// The block is not what was written.
    #[error("its checksum is wrong")]
    Damaged,
    /// The device failed to read the block.
    #[error("it cannot be read: {0}")]
    Unreadable(io::ErrorKind),
    /// The checksum is right, and a field is not.
    #[error("its fields contradict each other")]
    Unsound,
}

impl Superblock {
    /// Returns the bytes of the block.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        let mut fields = Fields::new(&mut bytes);
        fields.put(&MAGIC);
        fields.put(&self.version.max(UNENCODED_VERSION).to_le_bytes());
        fields.put(&[0; 4]);
        fields.put(&self.file);
        fields.put(&self.key);
        fields.put(&self.generation.to_le_bytes());
        fields.put(&self.epoch.to_le_bytes());
        fields.put(&self.journal.to_le_bytes());
        fields.put(&self.checkpoint.to_le_bytes());
        fields.put(&self.checkpoint_blocks.to_le_bytes());
        fields.put(&self.next_number.to_le_bytes());
        fields.put(&self.len.to_le_bytes());
        fields.put(&self.lifetime_bytes.to_le_bytes());
        fields.put(&self.since.to_le_bytes());
        fields.put(&self.counted_blocks.to_le_bytes());
        self.layout.write(&mut bytes[HEADER..HEADER + LAYOUT]);
        Owner::write(self.owner.as_ref(), &mut bytes[OF_OWNER..OF_OWNER + OWNER]);
        self.namespaces.write(&mut bytes[OF_NAMESPACES..OF_NAMESPACES + NAMESPACES]);
        seal(&mut bytes, CHECKSUM);
        bytes
    }

    /// Reads a block.
    ///
    /// # Errors
    /// [`SuperblockError`].
    pub fn from_bytes(bytes: &[u8; BLOCK]) -> Result<Superblock, SuperblockError> {
        if bytes[..8] != MAGIC {
            return Err(SuperblockError::Foreign);
        }
        let mut fields = Reader(&bytes[8..]);
        let found = fields.u32();
        if !is_sealed(bytes, CHECKSUM) {
            return Err(SuperblockError::Damaged);
        }
        if !(OLDEST..=VERSION).contains(&found) {
            return Err(SuperblockError::Version { found });
        }
        fields.u32();
        let superblock = Superblock {
            version: found,
            file: fields.take(),
            key: fields.take(),
            generation: fields.u64(),
            epoch: fields.u64(),
            journal: fields.u32(),
            checkpoint: fields.u32(),
            checkpoint_blocks: fields.u64(),
            next_number: fields.u64(),
            len: fields.u64(),
            lifetime_bytes: fields.u64(),
            since: fields.u64(),
            counted_blocks: fields.u32(),
            layout: Layout::read(&bytes[HEADER..HEADER + LAYOUT]),
            owner: Owner::read(&bytes[OF_OWNER..OF_OWNER + OWNER]),
            namespaces: Namespaces::read(&bytes[OF_NAMESPACES..OF_NAMESPACES + NAMESPACES]),
        };
        let Superblock { journal, checkpoint, checkpoint_blocks, len, layout, .. } = &superblock;
        let sound = *journal < 2
            && *checkpoint < 2
            && layout.is_sound(*len)
            && (1..=layout.checkpoints[0].blocks()).contains(checkpoint_blocks);
        if sound { Ok(superblock) } else { Err(SuperblockError::Unsound) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_contradict_each_other_are_no_superblock() {
        let len = 1 << 20;
        let layout = Layout::of(len, 1000, 4).expect("there is room");
        let blocks = layout.checkpoints[0].blocks();
        let sound = Superblock {
            version: VERSION,
            file: [1; 16],
            key: [2; 16],
            generation: 3,
            epoch: 4,
            journal: 1,
            checkpoint: 1,
            checkpoint_blocks: blocks,
            next_number: 5,
            len,
            lifetime_bytes: 6,
            since: 7,
            counted_blocks: 8,
            layout,
            owner: None,
            namespaces: Namespaces::default(),
        };
        assert_eq!(Superblock::from_bytes(&sound.to_bytes()), Ok(sound.clone()));
        let changes: [fn(&mut Superblock); 5] = [
            |it| it.journal = 2,
            |it| it.checkpoint = 2,
            |it| it.checkpoint_blocks = 0,
            |it| it.checkpoint_blocks += 1,
            |it| it.len -= 1,
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut changed = sound.clone();
            change(&mut changed);
            let read = Superblock::from_bytes(&changed.to_bytes());
            assert_eq!(read, Err(SuperblockError::Unsound), "change {index}");
        }
    }
}

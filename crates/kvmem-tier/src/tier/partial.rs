//! *Partial checkpoints*: one that is being written, and one for the superblocks to lead to.

use crate::format::{Change, RecentKeys, Superblock};

/// A checkpoint that is being written.
pub(super) struct PartialCheckpoint {
    /// The superblock that will name it.
    pub(super) superblock: Superblock,
    /// The next block of the other journal, and the keys of its last ones.
    pub(super) next_block: u32,
    pub(super) recent: RecentKeys,
    /// Entries that are to be written, and those of them that are left.
    pub(super) entries: usize,
    pub(super) left: usize,
    /// Blocks of the journal in use when it began.
    pub(super) began_at: u32,
    /// Changes for the next block of the checkpoint, which they do not fill.
    pub(super) rest: Vec<Change>,
}

impl PartialCheckpoint {
    /// Returns whether the other journal has room for `blocks` more blocks.
    pub(super) fn has_room(&self, blocks: usize) -> bool {
        let max = self.superblock.layout.journals[0].blocks();
        u64::from(self.next_block) + blocks as u64 <= max
    }
}

/// A complete checkpoint, with the changes behind it, for the superblocks to lead to.
pub(super) struct Switch {
    pub(super) superblock: Superblock,
    /// The blocks of changes in its journal, and the keys of the last ones.
    pub(super) next_block: u32,
    pub(super) recent: RecentKeys,
    /// It has all changes before this position.
    pub(super) position: u64,
}

//! *Format*: the bytes of a tier's file. Documented byte by byte in `docs/format/disk-tier.md`.
//!
//! ```text
//! block 0        superblock, first copy
//! block 1        superblock, second copy
//! journal 0      ┐ blocks of changes, written one after the other;
//! journal 1      ┘ one is in use, the other was, or will be
//! checkpoint 0   ┐ the whole index at one time;
//! checkpoint 1   ┘ the superblock says which one is valid
//! data           values, each at a multiple of the block
//! ```
//!
//! Everything but the data is made of blocks of [`BLOCK`] bytes with a checksum of their own, so a
//! block that was torn, lost or overwritten is recognized. Numbers are little-endian.
//!
//! ## The order of writes
//!
//! 1. A value's bytes are written, then the journal's block that says where they are, and then the
//!    caller learns that it is stored. A process that is killed therefore loses nothing that was
//!    acknowledged.
//! 2. A block of the journal is never written twice, so a torn write damages no older change.
//! 3. A range that a removed value had is used again only after the journal's block that says so,
//!    and all before it, are *durable*: written, and followed by a sync of the device.
//! 4. A checkpoint is written into the one not in use, and the changes that are made meanwhile into
//!    both journals. Then the device is synced, one superblock is written that names the checkpoint
//!    and the journal not in use, the device is synced, and the other superblock is written. Until
//!    the first superblock is durable, the old one leads to the old checkpoint and the old journal,
//!    which nothing has overwritten. A superblock that the device fails to write is left out if the
//!    other one is written.

mod block;
mod checkpoint;
mod entry;
mod journal;
mod layout;
mod namespaces;
mod owner;
mod repeated;
mod superblock;

pub use block::BLOCK;
pub use checkpoint::{CheckpointError, read_checkpoint, write_checkpoint};
pub(crate) use checkpoint::{is_empty_checkpoint, write_checkpoint_block};
pub(crate) use entry::blocks_of;
pub use entry::{Change, Digest, Encoded, Entry, Extent, Extents, Hints, MAX_EXTENTS};
pub(crate) use journal::{BlockOf, block_parts, write_packed};
pub use journal::{JournalBlock, read_journal_block, write_journal_block};
pub use layout::{Area, Layout};
pub use namespaces::{MAX_NAMESPACES, Namespaces};
pub use owner::Owner;
pub(crate) use repeated::{PackedBlock, RecentKeys};
pub use repeated::{RECORDS_PER_BLOCK, Repeated};
pub use superblock::{Superblock, SuperblockError, UNENCODED_VERSION, VERSION};

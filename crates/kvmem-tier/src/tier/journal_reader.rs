//! *Journal reader*: the blocks of a journal, also behind one that is damaged.
//!
//! The journal of a process that ended at any moment ends with a block that was torn, or was never
//! written: nothing of this epoch lies behind it. A block that is not whole, with a whole one of
//! the same file, epoch and place behind it, is therefore *damaged*, or a power cut took it and not
//! the later one. The reader returns a [`Gap`] for each run of such blocks, with the keys that a
//! later block [repeats](crate::format::Repeated).
//!
//! A later block also says how many of the first ones were durable when it was written, and so does
//! the superblock. A gap among these is no work of a power cut.

use std::collections::VecDeque;

use super::error::TierError;
use crate::device::{AlignedBuffer, Device};
use crate::format::{BLOCK, Digest, JournalBlock, Superblock, read_journal_block};

/// Blocks that are read at once.
const AT_ONCE: u32 = 256;
/// The most blocks behind the last whole one in which another one is looked for: 16 MiB. The
/// journal of a long tier has gigabytes.
const LOOK_AHEAD: usize = 4096;

/// The next part of a journal.
pub(super) enum JournalPart {
    Block(JournalBlock),
    Gap(Gap),
}

/// Blocks of a journal that are not what was written, or were not written.
#[derive(Default)]
pub(super) struct Gap {
    /// The number of blocks.
    pub(super) blocks: u64,
    /// The number of these blocks whose keys no later block has.
    pub(super) unknown_blocks: u64,
    /// Whether one of the latter was durable.
    pub(super) is_unknown_durable: bool,
    /// The keys of the others.
    pub(super) keys: Vec<Digest>,
}

/// Reads the journal to which a superblock leads, block by block.
pub(super) struct JournalReader<'a, D> {
    device: &'a D,
    superblock: &'a Superblock,
    /// The place of the next block.
    index: u32,
    /// Blocks that were read from there on; `None` for a block that is not whole.
    ahead: VecDeque<Option<JournalBlock>>,
}

impl<'a, D: Device> JournalReader<'a, D> {
    pub(super) fn new(device: &'a D, superblock: &'a Superblock) -> Self {
        JournalReader { device, superblock, index: 0, ahead: VecDeque::new() }
    }

    /// Returns the place of the block that comes next.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Returns the next part; `None` at the end of the journal.
    pub(super) fn next(&mut self) -> Result<Option<JournalPart>, TierError> {
        self.read_ahead(1)?;
        match self.ahead.front() {
            None => return Ok(None),
            Some(None) => {}
            Some(Some(_)) => {
                let block = self.take(1).flatten();
                return Ok(block.map(JournalPart::Block));
            }
        }
        let mut blocks = 1;
        while self.read_ahead(blocks + 1)? && self.ahead[blocks].is_none() && blocks < LOOK_AHEAD {
            blocks += 1;
        }
        let has_behind = self.ahead.get(blocks).is_some_and(Option::is_some);
        if !has_behind {
            // Those that the superblock counts were durable.
            let counted = u64::from(self.superblock.counted_blocks);
            let lost = counted.saturating_sub(self.index.into()).min(blocks as u64);
            self.take(blocks);
            // Nothing lies behind them.
            self.ahead.clear();
            self.index = self.blocks();
            let gap = Gap {
                blocks: lost,
                unknown_blocks: lost,
                is_unknown_durable: true,
                keys: Vec::new(),
            };
            return Ok((lost > 0).then_some(JournalPart::Gap(gap)));
        }
        self.read_ahead(blocks + AT_ONCE as usize)?;
        let gap = self.gap(blocks);
        self.take(blocks);
        Ok(Some(JournalPart::Gap(gap)))
    }

    /// Returns what later blocks say about the next `blocks` blocks, none of which is whole.
    fn gap(&self, blocks: usize) -> Gap {
        let behind = || self.ahead.iter().enumerate().skip(blocks);
        let whole = || behind().filter_map(|(place, block)| Some((place, block.as_ref()?)));
        let durable = whole().map(|(_, block)| block.durable_blocks).max().unwrap_or(0);
        let durable = durable.max(self.superblock.counted_blocks);
        let mut gap = Gap { blocks: blocks as u64, ..Gap::default() };
        for place in 0..blocks {
            let keys = whole().find_map(|(at, block)| block.repeated.of_block_before(at - place));
            match keys {
                Some(keys) => gap.keys.extend_from_slice(keys),
                None => {
                    gap.unknown_blocks += 1;
                    gap.is_unknown_durable |= self.index + (place as u32) < durable;
                }
            }
        }
        gap
    }

    fn blocks(&self) -> u32 {
        self.superblock.layout.journals[0].blocks() as u32
    }

    /// Takes the next `count` blocks; returns the last one.
    fn take(&mut self, count: usize) -> Option<Option<JournalBlock>> {
        self.index += count as u32;
        self.ahead.drain(..count).next_back()
    }

    /// Reads until `count` blocks from the next one on are known. Returns false if there are not as
    /// many.
    fn read_ahead(&mut self, count: usize) -> Result<bool, TierError> {
        let Superblock { file, epoch, journal, layout, .. } = *self.superblock;
        while self.ahead.len() < count {
            let first = self.index + self.ahead.len() as u32;
            let blocks = AT_ONCE.min(self.blocks() - first);
            if blocks == 0 {
                return Ok(false);
            }
            let at = layout.journals[journal as usize].block(first);
            let bytes = read_metadata(self.device, at, blocks.into())?;
            for (index, bytes) in (first..).zip(bytes.chunks_exact(BLOCK)) {
                let is_next = |block: &JournalBlock| {
                    (block.file, block.epoch, block.index) == (file, epoch, index)
                };
                self.ahead.push_back(read_journal_block(bytes).filter(is_next));
            }
        }
        Ok(true)
    }
}

/// Reads blocks of superblocks, checkpoint or journal.
pub(super) fn read_metadata(
    device: &impl Device,
    at: u64,
    blocks: u64,
) -> Result<AlignedBuffer, TierError> {
    let mut buffer = AlignedBuffer::new(blocks as usize);
    device.read_at(at, &mut buffer).map_err(TierError::device("read", at))?;
    Ok(buffer)
}

//! *Resizing*: a tier that is opened with another size than its file has becomes as long.
//!
//! The data area is the last part of the file, and the only one that changes. Journals and
//! checkpoints stay as long as they are, and with them the number of values that the tier may hold.
//!
//! A longer tier takes a new superblock. A shorter one takes three steps:
//!
//! 1. Values are evicted in their order until the others fit into the new data area. A checkpoint
//!    makes that durable: from then on, blocks that no value has may be overwritten.
//! 2. Values that lie behind the new end are copied into free blocks before it, those that would be
//!    evicted last first. Nothing names the copies yet. A value that cannot be read, or for which
//!    up to four free ranges are too short, is left out.
//! 3. A checkpoint names the copies, and its superblocks the new lengths. Then the file is cut off.
//!
//! A process that is killed thus leaves a tier of the old length or of the new one, and never loses
//! a value that the whole change would not. A file whose superblock names the new length already,
//! and that was not cut off, is cut off when it is opened with that size again.

use kvmem::offset::{OffsetAllocator, RawHandle};

use super::checksum::checksum;
use super::error::TierError;
use super::fetch::split_off;
use super::found::{Found, Restored, space_of};
use super::store::scatter;
use super::tier::DiskTier;
use crate::device::{AlignedBuffer, Device, Read, Write};
use crate::format::{BLOCK, Entry, Extent, Extents, Layout, MAX_EXTENTS, Superblock, blocks_of};
use crate::index::{Index, Indexed, Ranges};
use crate::trace::event;

/// Blocks that are copied at once, unless one value has more: 32 MiB.
const AT_ONCE: u64 = (32 << 20) / BLOCK as u64;

/// A value with its place in the order of eviction.
type Ordered<T> = (u64, T);

impl<D: Device> DiskTier<D> {
    /// Makes the tier `len` bytes long, which is at most the length of the device, and cuts the
    /// device off behind it.
    pub(super) fn resize(&mut self, len: u64) -> Result<(), TierError> {
        let old = self.journal().superblock.clone();
        if len != old.len {
            let layout = resized(&old.layout, len)?;
            self.evict_to(layout.data.blocks());
            self.checkpoint()?;
            let _left_out = self.refit(layout)?;
            event!(WARN, from = old.len, to = len, _left_out, "the tier has another length");
            let mut journal = self.journal();
            journal.superblock = Superblock { len, layout, ..journal.superblock.clone() };
            let result = self.write_checkpoint(&mut journal, 1, None);
            self.held(result)?;
        }
        if self.device.len() > len {
            self.device.cut(len).map_err(TierError::device("cut off", len))?;
        }
        Ok(())
    }

    /// Evicts values until the others have at most `blocks` blocks together with the quarantined
    /// parts before the new end.
    fn evict_to(&self, blocks: u64) {
        let mut state = self.state();
        let bad = state.quarantined.iter().filter_map(|(part, _)| before(blocks, *part));
        let bad: u64 = bad.map(|part| u64::from(part.blocks)).sum();
        let mut used: u64 = state.index.entries().map(|it| it.extents.blocks()).sum();
        while used + bad > blocks
            && let Some(evicted) = state.evict()
        {
            used -= evicted;
        }
    }

    /// Puts all values into the data area of another layout, in which nothing is durable yet.
    /// Returns how many values were left out.
    fn refit(&mut self, layout: Layout) -> Result<u64, TierError> {
        let (space, blocks) = (space_of(&layout), layout.data.blocks());
        let is_before = |part: &Extent| before(blocks, *part) == Some(*part);
        let (inside, outside, quarantined, is_lru) = {
            let state = self.state();
            debug_assert_eq!(state.retired_blocks(), 0, "a checkpoint has freed them");
            let (inside, outside): (Vec<_>, Vec<_>) = (0..)
                .zip(state.index.entries())
                .partition(|(_, entry): &Ordered<Entry>| entry.extents.iter().all(is_before));
            let bad = state.quarantined.iter().filter_map(|(part, _)| before(blocks, *part));
            (inside, outside, bad.collect::<Vec<_>>(), state.index.is_lru())
        };
        let count = inside.len() + outside.len();
        let Restored { mut live, quarantined, .. } = Found::of(inside, quarantined).restore(&space);
        // Until the copies have names, a value that lies on both sides of the end is where it was.
        let both_sides = outside.iter().flat_map(|(_, entry)| {
            let parts = entry.extents.iter().filter_map(|part| before(blocks, *part));
            parts.collect::<Vec<Extent>>()
        });
        let held: Vec<RawHandle> = both_sides
            .map(|Extent { start, blocks }| {
                let range = u64::from(start)..u64::from(start) + u64::from(blocks);
                space.allocate_raw_at(range).expect("no two values share a block").handle
            })
            .collect();
        // As `max_entries` counts them.
        let scattered = live.iter().filter(|(_, it)| it.entry.extents.is_scattered()).count();
        let used = count + quarantined.len() + (MAX_EXTENTS - 1) * scattered;
        let room = (layout.max_entries() as usize).saturating_sub(used) / (MAX_EXTENTS - 1);
        live.extend(self.copy_into(&space, outside, room)?);
        for range in held {
            let freed = space.free_raw(range);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
        live.sort_unstable_by_key(|&(order, _)| order);
        let left_out = (count - live.len()) as u64;
        {
            let mut state = self.state();
            state.index = Index::new(is_lru);
            state.stats.bytes = 0;
            state.stats.evictions += left_out;
            state.quarantined = quarantined;
            live.into_iter().for_each(|(_, indexed)| state.add(indexed));
        }
        (self.space, self.layout) = (space, layout);
        Ok(left_out)
    }

    /// Copies values into free blocks of `space`, the last ones first, and at most `scattered` of
    /// them into several ranges. Returns those that were copied.
    fn copy_into(
        &self,
        space: &OffsetAllocator,
        mut values: Vec<Ordered<Entry>>,
        mut scattered: usize,
    ) -> Result<Vec<Ordered<Indexed>>, TierError> {
        let mut copied = Vec::new();
        while let Some(last) = values.pop() {
            let (mut batch, mut blocks) = (vec![last], last.1.extents.blocks());
            while let Some(next) =
                values.pop_if(|(_, next)| blocks + next.extents.blocks() <= AT_ONCE)
            {
                blocks += next.1.extents.blocks();
                batch.push(next);
            }
            let mut buffer = AlignedBuffer::new(blocks as usize);
            let is_whole = self.read_all(&batch, &mut buffer);
            let (mut bytes, mut writes) = (&*buffer, Vec::new());
            for ((order, entry), is_whole) in batch.into_iter().zip(is_whole) {
                let (value, behind) = bytes.split_at(entry.extents.blocks() as usize * BLOCK);
                bytes = behind;
                let is_whole = is_whole
                    && checksum(&entry.digest, &value[..entry.len as usize]) == entry.checksum;
                let place = || place(space, entry.len, &mut scattered);
                let Some((extents, ranges)) = is_whole.then(place).flatten() else { continue };
                let mut value = value;
                for extent in extents.iter() {
                    let (part, behind) = value.split_at(extent.blocks as usize * BLOCK);
                    value = behind;
                    let at = self.layout.data.block(extent.start);
                    writes.push(Write { at, parts: [part, &[]] });
                }
                let entry = Entry { extents, unverified: false, ..entry };
                copied.push((order, Indexed { entry, ranges }));
            }
            let results = self.device.write(&writes, &mut |_| {});
            for (Write { at, parts }, result) in writes.iter().zip(results) {
                result.map_err(TierError::device("write", *at))?;
                self.state().stats.written_bytes += parts[0].len() as u64;
            }
        }
        Ok(copied)
    }

    /// Reads all blocks of values, one value behind the other. Returns which of them were read.
    fn read_all(&self, values: &[Ordered<Entry>], buffer: &mut [u8]) -> Vec<bool> {
        let (mut rest, mut reads, mut value_of) = (buffer, Vec::new(), Vec::new());
        for (value, (_, entry)) in values.iter().enumerate() {
            for extent in entry.extents.iter() {
                let part = split_off(&mut rest, extent.blocks as usize * BLOCK);
                let at = self.layout.data.block(extent.start);
                reads.push(Read { at, parts: [part, &mut []] });
                value_of.push(value);
            }
        }
        let mut are_read = vec![true; values.len()];
        self.device.read(&mut reads, &mut |one, _, result| {
            are_read[value_of[one]] &= result.is_ok();
        });
        are_read
    }
}

/// Returns the layout of a tier that becomes `len` bytes long.
pub(super) fn resized(layout: &Layout, len: u64) -> Result<Layout, TierError> {
    let min = layout.data.start + BLOCK as u64;
    layout.resized(len).ok_or(TierError::CannotShrink { len, min })
}

/// Returns what of a part lies in the first `blocks` blocks.
fn before(blocks: u64, Extent { start, blocks: all }: Extent) -> Option<Extent> {
    let left = blocks.checked_sub(u64::from(start)).filter(|&left| left > 0)?;
    Some(Extent { start, blocks: left.min(u64::from(all)) as u32 })
}

/// Allocates the blocks of a value, in several ranges if no single one is long enough, and if
/// `scattered` is above 0.
fn place(space: &OffsetAllocator, len: u64, scattered: &mut usize) -> Option<(Extents, Ranges)> {
    let blocks = u64::from(blocks_of(len));
    if let Ok(range) = space.allocate_raw(blocks) {
        return Some((Extents::contiguous(range.offset as u32, len), range.handle.into()));
    }
    *scattered = scattered.checked_sub(1)?;
    scatter(space, blocks)
}

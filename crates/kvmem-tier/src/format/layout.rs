//! *Layout*: which part of the file is what.

use super::BLOCK;
use super::block::{Fields, Reader};
use super::checkpoint::ENTRIES_PER_BLOCK;

/// A part of the file, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Area {
    /// Where it begins.
    pub start: u64,
    /// Its length.
    pub len: u64,
}

impl Area {
    /// Returns where the block `index` of the area begins.
    pub(crate) fn block(&self, index: u32) -> u64 {
        self.start + u64::from(index) * BLOCK as u64
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.len / BLOCK as u64
    }

    fn end(&self) -> Option<u64> {
        self.start.checked_add(self.len)
    }
}

/// The parts of the file. All begin and end at multiples of the block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// The two journals.
    pub journals: [Area; 2],
    /// The two checkpoints.
    pub checkpoints: [Area; 2],
    /// The values.
    pub data: Area,
}

/// Blocks of the superblocks.
const SUPERBLOCKS: u64 = 2;
/// Bytes of a layout in the superblock.
pub(super) const LAYOUT: usize = 5 * 16;

impl Layout {
    /// Divides a file of `len` bytes, for at most `max_entries` entries, with journals of
    /// `journal_blocks` blocks. `None` if no block is left for data.
    #[must_use]
    pub fn of(len: u64, max_entries: u64, journal_blocks: u64) -> Option<Layout> {
        let block = BLOCK as u64;
        let checkpoint = max_entries.div_ceil(ENTRIES_PER_BLOCK as u64).max(1);
        let behind = |area: Area, blocks: u64| -> Option<Area> {
            Some(Area { start: area.end()?, len: blocks.checked_mul(block)? })
        };
        let superblocks = Area { start: 0, len: SUPERBLOCKS * block };
        let first = behind(superblocks, journal_blocks)?;
        let journals = [first, behind(first, journal_blocks)?];
        let first = behind(journals[1], checkpoint)?;
        let checkpoints = [first, behind(first, checkpoint)?];
        // The index names blocks by 32 bits: of a longer device the rest is not used.
        let blocks = (len.checked_sub(checkpoints[1].end()?)? / block).min(u64::from(u32::MAX));
        let data = behind(checkpoints[1], blocks)?;
        (blocks > 0).then_some(Layout { journals, checkpoints, data })
    }

    /// Returns the layout of the same file when it is `len` bytes long. `None` if no block is left
    /// for data.
    pub(crate) fn resized(&self, len: u64) -> Option<Layout> {
        let Area { start, .. } = self.data;
        let blocks = (len.checked_sub(start)? / BLOCK as u64).min(u64::from(u32::MAX));
        let data = Area { start, len: blocks * BLOCK as u64 };
        (blocks > 0).then_some(Layout { data, ..*self })
    }

    /// Returns the number of entries that a checkpoint can hold.
    #[must_use]
    pub fn max_entries(&self) -> u64 {
        self.checkpoints[0].blocks() * ENTRIES_PER_BLOCK as u64
    }

    fn areas(&self) -> [Area; 5] {
        let Layout { journals: [a, b], checkpoints: [c, d], data } = *self;
        [a, b, c, d, data]
    }

    pub(super) fn write(&self, bytes: &mut [u8]) {
        let mut fields = Fields::new(bytes);
        for Area { start, len } in self.areas() {
            fields.put(&start.to_le_bytes());
            fields.put(&len.to_le_bytes());
        }
    }

    pub(super) fn read(bytes: &[u8]) -> Layout {
        let mut fields = Reader(bytes);
        let [a, b, c, d, data] =
            std::array::from_fn(|_| Area { start: fields.u64(), len: fields.u64() });
        Layout { journals: [a, b], checkpoints: [c, d], data }
    }

    /// Returns whether all parts are whole blocks, apart, in order, within `len` bytes.
    pub(super) fn is_sound(&self, len: u64) -> bool {
        let block = BLOCK as u64;
        let mut free = SUPERBLOCKS * block;
        self.areas().into_iter().all(|area| {
            let whole = area.start.is_multiple_of(block) && area.len.is_multiple_of(block);
            let behind = area.start >= free && area.len >= block;
            free = area.end().unwrap_or(u64::MAX);
            whole && behind && free <= len
        }) && self.journals[0].len == self.journals[1].len
            && self.checkpoints[0].len == self.checkpoints[1].len
            && self.journals[0].blocks() <= u64::from(u32::MAX)
            && self.data.blocks() <= u64::from(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_device_that_is_too_long_a_part_is_used() {
        let layout = Layout::of(1 << 45, 1000, 4).expect("there is room");
        assert_eq!(layout.data.blocks(), u64::from(u32::MAX));
        assert!(layout.is_sound(1 << 45) && layout.max_entries() >= 1000);
        assert_eq!(Layout::of(1 << 45, u64::MAX, 4), None);
    }

    #[test]
    fn parts_that_overlap_end_too_late_or_differ_are_no_layout() {
        let block = BLOCK as u64;
        let len = 1 << 20;
        let layout = Layout::of(len, 1000, 4).expect("there is room");
        assert!(layout.is_sound(len) && !layout.is_sound(len - 1));
        let changes: [fn(&mut Layout, u64); 9] = [
            |it, block| it.journals[0].start -= block, // it begins in the superblocks
            |it, block| it.journals[1].start -= block, // it begins in the other one
            |it, block| it.data.len += block,          // it ends behind the file
            |it, _| it.data.len -= 1,                  // it ends within a block
            |it, _| it.data.start += 1,                // it begins within one
            |it, _| it.data.len = 0,
            |it, _| it.data.len = u64::MAX,
            // The two parts of a kind are equally long.
            |it, block| it.journals[0].len -= block,
            |it, block| it.checkpoints[1].len -= block,
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut changed = layout;
            change(&mut changed, block);
            assert!(!changed.is_sound(len), "change {index}: {changed:?}");
        }
        // 32 bits name the blocks of a journal, and those of the values.
        let many = block << 32;
        let long = Layout::of(1 << 60, 1000, 1 << 32).expect("there is room");
        assert!(!long.is_sound(1 << 60));
        let mut long = layout;
        long.data.len = many;
        assert!(!long.is_sound(1 << 60));
        long.data.len -= block;
        assert!(long.is_sound(1 << 60));
    }
}

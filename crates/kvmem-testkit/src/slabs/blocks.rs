//! A record of the live blocks: their addresses, sizes and contents.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use anyhow::{Result, ensure};

/// The address of a block, with the right to use it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block(pub(super) NonNull<u8>);

// SAFETY: the thread that has the `Block` is the only user of its bytes.
unsafe impl Send for Block {}

impl Block {
    /// Writes `size` bytes. The block must belong to the caller and have that size.
    pub(super) fn fill(self, byte: u8, size: usize) {
        // SAFETY: the caller owns the block, which has `size` bytes.
        unsafe { self.0.write_bytes(byte, size) };
    }

    /// Returns whether `size` bytes, which have been written, all equal `byte`.
    pub(super) fn is_all(self, byte: u8, size: usize) -> bool {
        // SAFETY: the caller owns the block, which has `size` initialized bytes.
        let bytes = unsafe { std::slice::from_raw_parts(self.0.as_ptr(), size) };
        // Each byte equals the next one: a comparison of memory is fast in any build.
        bytes.split_first().is_none_or(|(first, rest)| *first == byte && *rest == bytes[..size - 1])
    }
}

/// A block in use.
pub(super) struct LiveBlock {
    pub(super) block: Block,
    pub(super) size: usize,
    pub(super) byte: u8,
}

impl LiveBlock {
    pub(super) fn is_intact(&self) -> bool {
        self.block.is_all(self.byte, self.size)
    }
}

/// The record, by address.
#[derive(Default)]
pub(super) struct Blocks {
    live: BTreeMap<usize, LiveBlock>,
    bytes: usize,
    last_byte: u8,
}

impl Blocks {
    /// Returns the byte with which to fill the next block.
    pub(super) fn next_byte(&mut self) -> u8 {
        self.last_byte = self.last_byte.wrapping_add(1);
        self.last_byte
    }

    /// Returns the bytes in use.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the sizes of all blocks.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> {
        self.live.values().map(|held| held.size)
    }

    /// Records a block that was filled with this byte.
    pub(super) fn add(&mut self, block: Block, size: usize, byte: u8) -> Result<()> {
        let start = block.0.addr().get();
        ensure!(start.is_multiple_of(16), "{size} bytes at {start:#x}");
        if let Some((at, other)) = self.live.range(..start + size).next_back() {
            ensure!(
                at + other.size <= start,
                "{size} bytes at {start:#x} overlap {} at {at:#x}",
                other.size
            );
        }
        self.live.insert(start, LiveBlock { block, size, byte });
        self.bytes += size;
        Ok(())
    }

    /// Removes up to `n` blocks, starting with the picked one.
    pub(super) fn take_run(&mut self, pick: u16, n: usize) -> Vec<LiveBlock> {
        self.take(pick, n, |_, _| true)
    }

    /// Removes up to `n` blocks of one size, starting with the picked one.
    pub(super) fn take_alike(&mut self, pick: u16, n: usize) -> Vec<LiveBlock> {
        self.take(pick, n, |size, first| size == first)
    }

    fn take(
        &mut self,
        pick: u16,
        n: usize,
        wanted: impl Fn(usize, usize) -> bool,
    ) -> Vec<LiveBlock> {
        let at = usize::from(pick) * self.live.len() / (usize::from(u16::MAX) + 1);
        let mut from = self.live.iter().skip(at).peekable();
        let first = from.peek().map_or(0, |(_, held)| held.size);
        let starts: Vec<_> = from
            .filter(|(_, held)| wanted(held.size, first))
            .take(n)
            .map(|(start, _)| *start)
            .collect();
        let taken: Vec<_> = starts.iter().filter_map(|start| self.live.remove(start)).collect();
        self.bytes -= taken.iter().map(|held| held.size).sum::<usize>();
        taken
    }

    /// Checks that every block has its contents.
    pub(super) fn check_all(&self) -> Result<()> {
        self.live.iter().try_for_each(|(start, held)| {
            ensure!(held.is_intact(), "{} bytes at {start:#x} were changed", held.size);
            Ok(())
        })
    }
}

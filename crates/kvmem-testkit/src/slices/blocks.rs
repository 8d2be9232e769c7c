//! *Blocks* in use: where they are, how large, and what every byte of each is.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use anyhow::{Result, ensure};

/// The address of a block, with the right to use it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block(pub(super) NonNull<u8>);

// SAFETY: whoever has the block in its books, or was handed it, has it alone.
unsafe impl Send for Block {}

impl Block {
    /// Writes so many bytes. The block is ours, and as large as that.
    pub(super) fn fill(self, byte: u8, size: usize) {
        // SAFETY: see above.
        unsafe { self.0.write_bytes(byte, size) };
    }

    /// Whether so many bytes, which have been written, are all this one.
    pub(super) fn is_all(self, byte: u8, size: usize) -> bool {
        // SAFETY: as for `fill`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), size) }
            .iter()
            .all(|found| *found == byte)
    }
}

/// A block in use.
pub(super) struct Held {
    pub(super) block: Block,
    pub(super) size: usize,
    pub(super) byte: u8,
}

impl Held {
    pub(super) fn is_intact(&self) -> bool {
        self.block.is_all(self.byte, self.size)
    }
}

/// The books, by address.
#[derive(Default)]
pub(super) struct Blocks {
    held: BTreeMap<usize, Held>,
    bytes: usize,
    last_byte: u8,
}

impl Blocks {
    /// What the next block is to be filled with.
    pub(super) fn next_byte(&mut self) -> u8 {
        self.last_byte = self.last_byte.wrapping_add(1);
        self.last_byte
    }

    /// Bytes in use.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The sizes of all blocks.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> {
        self.held.values().map(|held| held.size)
    }

    /// Enters a block that was filled with this byte.
    pub(super) fn add(&mut self, block: Block, size: usize, byte: u8) -> Result<()> {
        let start = block.0.addr().get();
        ensure!(start.is_multiple_of(16), "{size} bytes at {start:#x}");
        if let Some((at, other)) = self.held.range(..start + size).next_back() {
            ensure!(
                at + other.size <= start,
                "{size} bytes at {start:#x} overlap {} at {at:#x}",
                other.size
            );
        }
        self.held.insert(start, Held { block, size, byte });
        self.bytes += size;
        Ok(())
    }

    /// Takes up to `n` blocks, from the one that is picked on.
    pub(super) fn take_run(&mut self, pick: u16, n: usize) -> Vec<Held> {
        self.take(pick, n, |_, _| true)
    }

    /// As above, only those of the size of the first.
    pub(super) fn take_alike(&mut self, pick: u16, n: usize) -> Vec<Held> {
        self.take(pick, n, |size, first| size == first)
    }

    fn take(&mut self, pick: u16, n: usize, wanted: impl Fn(usize, usize) -> bool) -> Vec<Held> {
        let at = usize::from(pick) * self.held.len() / (usize::from(u16::MAX) + 1);
        let mut from = self.held.iter().skip(at).peekable();
        let first = from.peek().map_or(0, |(_, held)| held.size);
        let starts: Vec<_> = from
            .filter(|(_, held)| wanted(held.size, first))
            .take(n)
            .map(|(start, _)| *start)
            .collect();
        let taken: Vec<_> = starts.iter().filter_map(|start| self.held.remove(start)).collect();
        self.bytes -= taken.iter().map(|held| held.size).sum::<usize>();
        taken
    }

    /// Sees that every block is what was written to it.
    pub(super) fn check_all(&self) -> Result<()> {
        self.held.iter().try_for_each(|(start, held)| {
            ensure!(held.is_intact(), "{} bytes at {start:#x} were changed", held.size);
            Ok(())
        })
    }
}

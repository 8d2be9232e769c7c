//! *Bounce buffers*: aligned memory for bytes that the device cannot transfer in place.
//!
//! Direct I/O transfers whole blocks to and from aligned memory. The last block of a value goes
//! through a bounce buffer if the value ends within it, and all of a value if its memory is not
//! aligned. Buffers are cached for the next calls: new memory would have to be cleared, and its
//! pages mapped.
//!
//! The forms of encoded values go through such buffers as a whole. Their memory is a pool of
//! hugepages: a drive transfers base pages, which lie anywhere, in many small parts.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, OnceLock, PoisonError};

use kvmem::arena::{Ladder, PageSize, Populate};
use kvmem::pool::{Block, Pool};

use crate::device::AlignedBuffer;
use crate::format::BLOCK;

/// The most bytes, and the most buffers, that are cached.
const MAX_RETAINED: usize = 32 << 20;
const MAX_BUFFERS: usize = 256;
/// Bytes of the pool for forms, and of the shortest form that has a block of it. A thread uses a
/// quarter of it.
const POOL: usize = 32 << 20;
const LEAST_POOLED: usize = 32 << 10;

/// Returns how many bytes of `value` the device can transfer in place, if memory and lengths have
/// these alignments. Whole blocks, or all.
pub(super) fn in_place(value: &[u8], memory_align: usize, len_align: usize) -> usize {
    match value.len() {
        _ if !value.as_ptr().addr().is_multiple_of(memory_align) => 0,
        len if len.is_multiple_of(len_align) => len,
        len => len / BLOCK * BLOCK,
    }
}

/// Returns the blocks behind those in place. A value without bytes has a block, too.
pub(super) fn blocks_of_rest(in_place: &[u8], rest: &[u8]) -> usize {
    let least = usize::from(in_place.is_empty());
    rest.len().div_ceil(BLOCK).max(least)
}

/// Bounce buffers that are not in use.
#[derive(Default)]
pub(super) struct BounceBuffers {
    retained: Mutex<RetainedMemory>,
    /// Made for the first form. `None`: the system has no memory for it.
    pool: OnceLock<Option<Pool>>,
}

#[derive(Default)]
struct RetainedMemory {
    /// The one that was used last is behind all others.
    buffers: VecDeque<AlignedBuffer>,
    bytes: usize,
}

impl BounceBuffers {
    fn spare(&self) -> std::sync::MutexGuard<'_, RetainedMemory> {
        self.retained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a cached buffer of at least `len` bytes, and not of much more.
    fn find(&self, len: usize) -> Option<AlignedBuffer> {
        let mut spare = self.spare();
        let fits = |buffer: &AlignedBuffer| (len..=2 * len).contains(&buffer.len());
        let found = spare.buffers.iter().rposition(fits)?;
        let buffer = spare.buffers.remove(found)?;
        spare.bytes -= buffer.len();
        Some(buffer)
    }

    /// Returns a buffer of `blocks` blocks. Its bytes are any.
    pub(super) fn take(&self, blocks: usize) -> Bounce<'_> {
        let len = blocks * BLOCK;
        let spare = if len > 0 { self.find(len) } else { None };
        let buffer = Memory::Own(spare.unwrap_or_else(|| AlignedBuffer::new(blocks)));
        Bounce { of: self, buffer, len }
    }

    /// Returns a buffer of `blocks` blocks for the form of a value. Its bytes are any.
    pub(super) fn take_for_form(&self, blocks: usize) -> Bounce<'_> {
        let len = blocks * BLOCK;
        if len < LEAST_POOLED {
            return self.take(blocks);
        }
        let make = || {
            let builder = Pool::builder(POOL).name("disk-tier-forms").populate(Populate::None);
            builder
                .ladder(Ladder::new([PageSize::Thp, PageSize::Base]))
                .auto_hot_sizes(false)
                .build()
                .ok()
        };
        let pool = self.pool.get_or_init(make).as_ref();
        match pool.map(|pool| pool.allocate_aligned(len, BLOCK)) {
            Some(Ok(block)) => Bounce { of: self, buffer: Memory::Pooled(block), len },
            _ => self.take(blocks),
        }
    }

    /// Returns a buffer that holds `bytes`, and zeros up to the end of the block: at least one.
    pub(super) fn copy_of(&self, bytes: &[u8]) -> Bounce<'_> {
        let len = bytes.len().max(1).next_multiple_of(BLOCK);
        let buffer = match self.find(len) {
            Some(mut buffer) => {
                buffer[..bytes.len()].copy_from_slice(bytes);
                buffer[bytes.len()..len].fill(0);
                buffer
            }
            None => AlignedBuffer::copy_of(bytes),
        };
        Bounce { of: self, buffer: Memory::Own(buffer), len }
    }

    fn put(&self, buffer: AlignedBuffer) {
        let mut spare = self.spare();
        spare.bytes += buffer.len();
        spare.buffers.push_back(buffer);
        while spare.bytes > MAX_RETAINED || spare.buffers.len() > MAX_BUFFERS {
            let Some(oldest) = spare.buffers.pop_front() else { return };
            spare.bytes -= oldest.len();
        }
    }
}

/// The memory of a bounce buffer.
enum Memory {
    Own(AlignedBuffer),
    Pooled(Block),
}

/// A bounce buffer in use.
pub(super) struct Bounce<'a> {
    of: &'a BounceBuffers,
    buffer: Memory,
    len: usize,
}

impl Deref for Bounce<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.buffer {
            Memory::Own(buffer) => &buffer[..self.len],
            Memory::Pooled(block) => &block.bytes()[..self.len],
        }
    }
}

impl DerefMut for Bounce<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.buffer {
            Memory::Own(buffer) => &mut buffer[..self.len],
            Memory::Pooled(block) => &mut block.bytes_mut()[..self.len],
        }
    }
}

impl Drop for Bounce<'_> {
    fn drop(&mut self) {
        if let Memory::Own(buffer) = &mut self.buffer
            && self.len > 0
        {
            self.of.put(std::mem::replace(buffer, AlignedBuffer::new(0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_of_aligned_memory_stay_in_place() {
        let memory = AlignedBuffer::new(4);
        let bytes = |from: usize, len: usize| &memory[from..from + len];
        for (value, memory_align, len_align, expected) in [
            (bytes(0, 8192), BLOCK, BLOCK, 8192),
            (bytes(0, 8193), BLOCK, BLOCK, 8192),
            (bytes(0, 100), BLOCK, BLOCK, 0),
            (bytes(0, 0), BLOCK, BLOCK, 0),
            (bytes(512, 8192), BLOCK, BLOCK, 0),
            (bytes(512, 8192), 512, BLOCK, 8192),
            (bytes(512, 8704), 512, BLOCK, 8192),
            (bytes(512, 8704), 512, 512, 8704),
            (bytes(3, 77), 1, 1, 77),
            (bytes(3, 77), 4, 1, 0),
        ] {
            assert_eq!(in_place(value, memory_align, len_align), expected);
        }
        assert_eq!(blocks_of_rest(&[1], &[]), 0);
        assert_eq!(blocks_of_rest(&[1], &[1]), 1);
        assert_eq!(blocks_of_rest(&[], &[]), 1);
        assert_eq!(blocks_of_rest(&[], &[0; BLOCK + 1]), 2);
    }

    #[test]
    fn a_buffer_is_used_again_and_padded_with_zeros() {
        let buffers = BounceBuffers::default();
        let mut first = buffers.take(2);
        first.fill(7);
        let at = first.as_ptr();
        drop(first);
        let second = buffers.copy_of(&[1; BLOCK + 1]);
        assert_eq!((second.as_ptr(), second.len()), (at, 2 * BLOCK));
        assert!(second[..=BLOCK].iter().all(|&byte| byte == 1));
        assert!(second[BLOCK + 1..].iter().all(|&byte| byte == 0));
        let third = buffers.copy_of(&[]);
        assert!(*third == [0; BLOCK] && third.as_ptr() != at);
        // A much longer one stays for longer values.
        drop((second, third));
        drop(buffers.take(3));
        assert_eq!(buffers.take(1).len(), BLOCK);
        assert!(buffers.take(0).is_empty());
    }

    #[test]
    fn forms_have_blocks_of_a_pool_while_there_are_some() {
        let buffers = BounceBuffers::default();
        assert!(buffers.pool.get().is_none());
        let is_pooled = |one: &Bounce<'_>| matches!(one.buffer, Memory::Pooled(_));
        assert!(!is_pooled(&buffers.take_for_form(1)));
        let mut all: Vec<Bounce<'_>> = (0..5).map(|_| buffers.take_for_form(2048)).collect();
        let pooled: Vec<bool> = all.iter().map(is_pooled).collect();
        assert_eq!(pooled, [true, true, true, true, false]);
        for (number, one) in (0..).zip(&mut all) {
            assert!(one.len() == 8 << 20 && one.as_ptr().addr().is_multiple_of(BLOCK));
            one.fill(number);
        }
        for (number, one) in (0..).zip(&all) {
            assert!(one.iter().all(|byte| *byte == number), "{number} overlaps");
        }
        drop(all);
        assert!(is_pooled(&buffers.take_for_form(8192)));
        assert!(!is_pooled(&buffers.take_for_form(8193)));
    }

    #[test]
    fn no_more_than_some_memory_is_retained() {
        let buffers = BounceBuffers::default();
        let many: Vec<_> = (0..MAX_BUFFERS + 10).map(|_| buffers.take(1)).collect();
        drop(many);
        assert_eq!(buffers.spare().buffers.len(), MAX_BUFFERS);
        drop(buffers.take(MAX_RETAINED / BLOCK));
        let figures = |spare: &RetainedMemory| (spare.bytes, spare.buffers.len());
        assert_eq!(figures(&buffers.spare()), (MAX_RETAINED, 1));
        drop(buffers.take(MAX_RETAINED / BLOCK + 1));
        assert_eq!(buffers.spare().bytes, 0);
    }
}

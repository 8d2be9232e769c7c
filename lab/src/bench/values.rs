//! *Values* of the suites that store bytes: those of a pass to store, and room for those to read.

use kvmem::arena::PageSize;
use kvmem::pool::{Block, Pool, PoolError};

/// Why values could not be made, or are not those that were stored.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// A pool for the values could not be made.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Other bytes came back than were stored.
    #[error("value {number} came back with other bytes than were stored")]
    Wrong {
        /// The number of the value.
        number: u64,
    },
}

/// Bytes at the beginning of a value that tell its number.
const NUMBER: usize = 8;
/// Bytes of a block of a device.
pub(crate) const BLOCK: u64 = kvmem_tier::format::BLOCK as u64;

/// Returns the bytes of the blocks of a value.
pub fn padded(len: u64) -> u64 {
    len.div_ceil(BLOCK).max(1).saturating_mul(BLOCK)
}

/// Values of one length, each in blocks of its own. Their memory is a pool's.
pub(crate) struct Memory {
    pub(crate) pool: Pool,
    source: Block,
    target: Block,
    pub(crate) len: usize,
    pub(crate) stride: usize,
    pub(crate) count: usize,
}

impl Memory {
    /// Makes `count` values of `len` bytes, and room for as many.
    pub(crate) fn new(len: u64, count: u64) -> Result<Memory, ValueError> {
        let stride = padded(len) as usize;
        let bytes = stride * count as usize;
        let size = (2 * bytes).next_multiple_of(PageSize::Thp.bytes()) + (4 << 20);
        let pool = Pool::builder(size).ladder(PageSize::Thp).build()?;
        let block = || pool.allocate_aligned(bytes, BLOCK as usize);
        let (mut source, target) = (block()?, block()?);
        fill(source.bytes_mut());
        Ok(Memory { pool, source, target, len: len as usize, stride, count: count as usize })
    }

    /// Returns the values `first` to `first + count − 1`, each with the padding behind it. `first`
    /// is a multiple of the count.
    pub(crate) fn values(&mut self, first: u64) -> impl Iterator<Item = &[u8]> {
        let source = self.source.bytes_mut();
        for (number, value) in (first..).zip(source.chunks_exact_mut(self.stride)) {
            value[..NUMBER].copy_from_slice(&number.to_le_bytes());
        }
        source.chunks_exact(self.stride)
    }

    /// Returns room for each value, with its padding.
    pub(crate) fn rooms(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.target.bytes_mut().chunks_exact_mut(self.stride)
    }

    /// Makes values that are not fetched differ from those that are.
    pub(crate) fn forget(&mut self) {
        for room in self.target.bytes_mut().chunks_exact_mut(self.stride) {
            room[..NUMBER].fill(0xff);
        }
    }

    /// Compares the values in the rooms with those of these numbers.
    pub(crate) fn compare(&self, numbers: &[u64]) -> Result<(), ValueError> {
        let rooms = self.target.bytes().chunks_exact(self.stride);
        for (&number, room) in numbers.iter().zip(rooms) {
            let at = (number % self.count as u64) as usize * self.stride;
            let value = &self.source.bytes()[at..at + self.len];
            if room[..NUMBER] != number.to_le_bytes() || room[NUMBER..self.len] != value[NUMBER..] {
                return Err(ValueError::Wrong { number });
            }
        }
        Ok(())
    }
}

/// Fills memory with bytes that no device can compress.
fn fill(memory: &mut [u8]) {
    // Marsaglia's xorshift64.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in memory.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
}

//! What new blocks hold: every byte of a pool is read after every step, through a second mapping of
//! its memory.

mod edges;
mod properties;
mod threads;

use std::ops::Range;

use kvmem::arena::Backing;
use kvmem::pool::{Access, AttachedPool, BlockRef, InitOn, Pool, PoolBuilder};
use kvmem::slab::ExtentState;

use super::small;

fn builder(bytes: usize, init_on: InitOn) -> PoolBuilder {
    small(bytes).backing(Backing::Shared).init_on(init_on)
}

/// A second mapping of a pool's memory, which shows free bytes too and stays after the pool.
struct View(AttachedPool);

impl View {
    fn of(pool: &Pool) -> View {
        // SAFETY: a test reads and writes through the view only while nothing else uses the bytes.
        let fd = unsafe { pool.share() }.expect("the pool is shared");
        View(AttachedPool::attach(fd, Access::ReadWrite).expect("its descriptor"))
    }

    fn reference(&self, range: Range<u64>) -> BlockRef {
        BlockRef { pool: self.0.share_id(), offset: range.start, len: range.end - range.start }
    }

    fn bytes(&self, range: Range<u64>) -> &[u8] {
        // SAFETY: as `of` says.
        unsafe { self.0.bytes(self.reference(range)) }.expect("a range of the pool")
    }

    fn fill(&self, range: Range<u64>, with: u8) {
        // SAFETY: as `of` says.
        unsafe { self.0.bytes_mut(self.reference(range)) }.expect("a range of the pool").fill(with);
    }

    /// Returns the first byte of a range that is not zero, as an offset into the pool.
    fn first_kept(&self, range: Range<u64>) -> Option<u64> {
        first_other(self.bytes(range.clone()), 0).map(|at| range.start + at as u64)
    }

    /// Returns the first byte of all memory that is not zero.
    fn first_kept_of_all(&self) -> Option<u64> {
        self.first_kept(0..self.0.len() as u64)
    }
}

/// Returns the index of the first byte that differs from `byte`. Sequences read all bytes after
/// every step, so most of them are compared at once.
fn first_other(bytes: &[u8], byte: u8) -> Option<usize> {
    let same = [byte; 4096];
    let parts = bytes.chunks(same.len()).enumerate();
    let mut wrong = parts.filter(|(_, part)| **part != same[..part.len()]);
    let (number, part) = wrong.next()?;
    part.iter().position(|other| *other != byte).map(|at| number * same.len() + at)
}

/// Returns the ranges of a pool that are free, cached or not.
fn free_ranges(pool: &Pool) -> Vec<Range<u64>> {
    let map = pool.map().into_iter();
    let free = map.filter(|range| range.state != ExtentState::Used);
    free.map(|range| range.offset..range.offset + range.size).collect()
}

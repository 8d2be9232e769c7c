//! *Batch*: many ranges of one size, and many frees, across shards.

use std::iter;

use super::sharded_allocator::ShardedAllocator;
use crate::offset::allocator::{Allocation, SpaceHandle};
use crate::offset::error::AllocError;

impl ShardedAllocator {
    /// Allocates `n` ranges of `size` bytes each, or none: of the home shard if it has room for
    /// all, otherwise of as many shards as it takes. O(n + shards).
    ///
    /// A batch that takes several shards takes one lock after the other. If all shards together
    /// have no room for it, other threads may meanwhile fail requests that its ranges had room for.
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate); [`AllocError::OutOfSpace`] names the bytes of all
    /// ranges together.
    pub fn allocate_batch(&self, size: u64, n: usize) -> Result<Vec<Allocation>, AllocError> {
        let home = self.home();
        self.shards[home].allocate_batch(size, n).or_else(|error| self.gather(home, size, n, error))
    }

    /// Allocates a batch of several shards, or of one that is not the home shard, which has failed
    /// it with `error`.
    fn gather(
        &self,
        home: usize,
        size: u64,
        n: usize,
        error: AllocError,
    ) -> Result<Vec<Allocation>, AllocError> {
        let full = self.shard_failed(size, error)?;
        let room = |shard| u128::from(SpaceHandle::of(shard).free_bound());
        let fits = u128::from(size) * n as u128 <= self.shards.iter().map(room).sum();
        if fits {
            let mut batch = Vec::with_capacity(n);
            for shard in iter::once(&self.shards[home]).chain(self.others(home)) {
                batch.extend(shard.allocate_up_to(size, n - batch.len()));
                if batch.len() == n {
                    return Ok(batch);
                }
            }
            self.free_batch(batch);
        }
        let full = full.filter(|_| fits);
        Err(full.unwrap_or_else(|| self.out_of_space(size).of_batch(size, n)))
    }

    /// Frees many allocations, those of a shard under one lock. Ranges that follow each other in
    /// `run` and in a shard are coalesced first. Allocations of other spaces are freed there.
    /// O(n log n).
    pub fn free_batch(&self, run: impl IntoIterator<Item = Allocation>) {
        let mut run: Vec<Allocation> = run.into_iter().collect();
        // Stable: ranges of a shard keep their order.
        run.sort_by_key(Allocation::core_index);
        let mut run = run.into_iter().peekable();
        while let Some(first) = run.next() {
            let core = first.core_index();
            // If that is not the shard of these, it frees them one by one.
            let shard = &self.shards[self.cuts.shard_at(first.offset())];
            let rest = iter::from_fn(|| run.next_if(|next| next.core_index() == core));
            shard.free_batch(iter::once(first).chain(rest));
        }
    }
}

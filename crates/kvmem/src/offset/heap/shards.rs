//! *Shards*: a heap is cut into the heaps of consecutive parts of its space, and free bytes move
//! from one to its neighbour.

use super::deferred::DeferredFrees;
use super::heap::Heap;
use super::quick_lists::QuickLists;
use super::ranges::RangeTable;
use super::region_searches::RegionSearches;

/// The least part of a shard that is too long for a granule: shards that begin in a long free range
/// begin at a multiple of a power of two.
const PART_OF_SHARD: u64 = 64;

/// The free bytes at the ends of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardEnds {
    /// Where the shard begins and ends.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Free bytes at its start and at its end. With a boundary 0: no free bytes move there.
    pub(crate) head: u64,
    pub(crate) tail: u64,
}

impl Heap {
    /// Returns whether all nodes have numbers below `end`.
    pub(crate) fn has_nodes_below(&self, end: u32) -> bool {
        self.ranges.chain().is_within(end)
    }

    /// Returns the limit of the number of ranges.
    pub(crate) fn max_ranges(&self) -> u32 {
        let chain = self.ranges.chain();
        chain.live() - 1 + chain.remaining()
    }

    /// Returns whether nothing has been freed yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Returns where up to `shards` shards of about equal length can begin. O(ranges).
    pub(crate) fn shard_starts(&mut self, shards: usize) -> Vec<u64> {
        self.close_region();
        let (start, capacity) = (self.ranges.start(), self.capacity());
        let shard = capacity / shards as u64;
        let granule = 1 << (shard / PART_OF_SHARD).max(1).ilog2();
        let target = |at: usize| {
            let target = u128::from(capacity) * at as u128 / shards as u128;
            start + target as u64 / granule * granule
        };
        let targets: Vec<u64> = (1..shards).map(target).collect();
        self.ranges.starts_near(&targets, shard / PART_OF_SHARD)
    }

    /// Returns the heaps of the shards that begin at `starts`, which
    /// [`shard_starts`](Self::shard_starts) returned, with at most `max_ranges` ranges each. Ranges
    /// keep their nodes. O(ranges).
    pub(crate) fn cut(&mut self, starts: &[u64], max_ranges: u32) -> Vec<Heap> {
        self.close_region();
        let limit = self.limit();
        let shard = |ranges: RangeTable| {
            let mut policy = self.policy.clone();
            policy.set_capacity(ranges.capacity());
            Heap {
                ranges,
                deferred: DeferredFrees::default(),
                quick: QuickLists::new(),
                policy,
                region_searches: RegionSearches::default(),
                fresh: self.fresh,
                limit_of_shards: Some(limit),
            }
        };
        self.ranges.partition(starts, max_ranges).into_iter().map(shard).collect()
    }

    /// Returns the free bytes at the ends of this shard, with nothing deferred. O(1).
    pub(crate) fn shard_ends(&mut self) -> ShardEnds {
        self.close_region();
        let ranges = &self.ranges;
        let (start, end) = (ranges.start(), ranges.start() + ranges.capacity());
        if ranges.has_boundary() {
            return ShardEnds { start, end, head: 0, tail: 0 };
        }
        ShardEnds { start, end, head: ranges.free_head(), tail: ranges.free_tail() }
    }

    /// Removes `bytes` of the free bytes at the start of this shard. An empty shard lies at `end`
    /// afterwards.
    pub(crate) fn cut_start(&mut self, bytes: u64, end: u64) {
        if bytes == self.capacity() {
            self.ranges.clear(end);
        } else {
            self.ranges.cut_start(bytes);
        }
        self.policy.set_capacity(self.capacity());
    }

    /// Sets the limit of the whole space, of which this is a shard.
    pub(crate) fn set_limit_of_space(&mut self, limit: u64) {
        self.limit_of_shards = Some(limit);
    }

    /// Returns one past the last byte in use, or where the shard begins if there is none.
    pub(crate) fn end_of_last(&mut self) -> u64 {
        self.coalesce();
        self.ranges.end_of_last()
    }
}

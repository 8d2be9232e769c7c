//! *Cuts*: where the shards of a space begin.
//!
//! The space is counted in *granules*, and each shard gets as many whole granules as the others, or
//! one more. A granule is the boundary, if the space has one, so every shard begins at a boundary
//! and a segment lies in one shard. Otherwise it is the greatest power of two up to 1/64 of a
//! shard: shards of any useful length begin at multiples of pages, and sizes that are multiples of
//! a page have offsets that are, too, as in a space without shards.

use std::ops::Range;

use crate::offset::error::SpaceError;

/// Upper bound of the number of shards. A request that fails reads the hint of each.
const MAX_SHARDS: u32 = 1024;
/// The least part of a shard that is too long for a granule.
const PART_OF_SHARD: u64 = 64;

/// The cuts of a space.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardCuts {
    capacity: u64,
    granule: u64,
    /// Granules of the space; the last may be shorter.
    granules: u64,
    shards: u32,
}

impl ShardCuts {
    /// Cuts a space of `capacity` ≥ 1 bytes into `shards` parts.
    pub(super) fn new(
        capacity: u64,
        boundary: Option<u64>,
        shards: u32,
    ) -> Result<Self, SpaceError> {
        let of_length = |shard: u64| 1 << (shard / PART_OF_SHARD).max(1).ilog2();
        let shard = capacity / u64::from(shards.max(1));
        let granule = boundary.unwrap_or_else(|| of_length(shard));
        let granules = capacity.div_ceil(granule);
        let pieces = if boundary.is_some() { granules } else { capacity };
        let max = pieces.min(MAX_SHARDS.into()) as u32;
        if !(1..=max).contains(&shards) {
            return Err(SpaceError::Shards { requested: shards, max });
        }
        Ok(ShardCuts { capacity, granule, granules, shards })
    }

    /// Returns the length of the space.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the number of shards.
    pub(super) fn len(&self) -> usize {
        self.shards as usize
    }

    /// Returns the length of the longest shard. O(shards).
    pub(super) fn longest(&self) -> u64 {
        let len = |range: Range<u64>| range.end - range.start;
        (0..self.len()).map(|at| len(self.range(at))).max().unwrap_or(0)
    }

    /// Returns the bytes of the shard `at`.
    pub(super) fn range(&self, at: usize) -> Range<u64> {
        self.start(at)..self.start(at + 1)
    }

    /// Returns where the shard `at` begins; for the number of shards, where the space ends.
    fn start(&self, at: usize) -> u64 {
        let granules = u128::from(self.granules) * at as u128 / u128::from(self.shards);
        let start = granules * u128::from(self.granule);
        u64::try_from(start).map_or(self.capacity, |start| start.min(self.capacity))
    }

    /// Returns the shard that contains `offset`; the last one for an offset behind the space.
    pub(super) fn shard_at(&self, offset: u64) -> usize {
        // The last shard whose first granule is not behind that of the offset.
        let behind = u128::from(offset / self.granule) + 1;
        let at = (behind * u128::from(self.shards) - 1) / u128::from(self.granules);
        (at as usize).min(self.len() - 1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Checks that the shards of a space tile it, are about equally long, and are found.
    fn check(capacity: u64, boundary: Option<u64>, shards: u32) {
        let cuts = ShardCuts::new(capacity, boundary, shards).unwrap();
        let what = format!("{cuts:?}");
        let mut end = 0;
        let (mut shortest, mut longest) = (u64::MAX, 0);
        for at in 0..cuts.len() {
            let range = cuts.range(at);
            assert!(range.start == end && !range.is_empty(), "{what}: {range:?}");
            assert!(range.start.is_multiple_of(cuts.granule), "{what}: {range:?}");
            for inside in [range.start, range.start + (range.end - range.start) / 2, range.end - 1]
            {
                assert_eq!(cuts.shard_at(inside), at, "{what}: {inside}");
            }
            end = range.end;
            let granules = (range.end - range.start).div_ceil(cuts.granule);
            (shortest, longest) = (granules.min(shortest), granules.max(longest));
        }
        assert_eq!(end, capacity, "{what}");
        assert!(longest - shortest <= 1, "{what}: {shortest} to {longest} granules");
        assert_eq!(cuts.shard_at(u64::MAX), cuts.len() - 1, "{what}");
    }

    #[test]
    fn shards_tile_the_space() {
        for capacity in (1..=300).chain([4095, 1 << 40, (1 << 40) + 1, (1 << 63) - 1, 1 << 63]) {
            for shards in [1, 2, 3, 7, 8, 32, 64, 1000, 1024] {
                if u64::from(shards) <= capacity {
                    check(capacity, None, shards);
                }
                for boundary in [1, 2, 3, 64, 1000, 1 << 30, (1 << 63) + 5, u64::MAX] {
                    if u64::from(shards) <= capacity.div_ceil(boundary) {
                        check(capacity, Some(boundary), shards);
                    }
                }
            }
        }
    }

    #[test]
    fn long_shards_begin_at_pages() {
        let cuts = ShardCuts::new(1000 << 30, None, 7).unwrap();
        assert_eq!(cuts.granule, 2 << 30);
        let cuts = ShardCuts::new(10_000_000, None, 3).unwrap();
        assert_eq!(cuts.granule, 32 << 10);
    }

    #[test]
    fn too_many_shards_are_an_error() {
        let max =
            |capacity, boundary, requested| match ShardCuts::new(capacity, boundary, requested) {
                Err(SpaceError::Shards { requested: said, max }) if said == requested => max,
                other => panic!("{other:?}"),
            };
        assert_eq!(max(10, None, 11), 10);
        assert_eq!(max(10, None, 0), 10);
        assert_eq!(max(10, Some(4), 4), 3);
        assert_eq!(max(1 << 40, None, 1025), 1024);
        assert_eq!(max(1 << 40, Some(u64::MAX), 2), 1);
        assert_eq!(max(1, None, u32::MAX), 1);
    }
}

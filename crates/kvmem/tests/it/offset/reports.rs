//! Figures, bins and map count the same free ranges, after any traffic.

use kvmem::offset::{Allocation, OffsetAllocator, Placement};
use kvmem::offset::{BinReport, MapRange, Metrics};
use kvmem_testkit::random::Random;

/// Compares figures and bins with the free ranges of the map.
fn compare(metrics: &Metrics, bins: &[BinReport], map: &[MapRange], limit: u64) {
    let free: Vec<u64> = map.iter().filter(|range| !range.used).map(|range| range.size).collect();
    assert_eq!(metrics.free_ranges, free.len() as u64, "{metrics:?}, {free:?}");
    assert_eq!(metrics.free, free.iter().sum::<u64>());
    assert_eq!(metrics.largest_free, free.iter().copied().max().unwrap_or(0).min(limit));
    for bin in bins {
        let within = free.iter().filter(|&&size| (bin.size_min..=bin.size_max).contains(&size));
        assert_eq!((bin.ranges, bin.bytes), (within.clone().count() as u64, within.sum()));
    }
    assert_eq!(bins.iter().map(|bin| bin.ranges).sum::<u64>(), free.len() as u64);
}

/// Returns a size of mixed traffic: half of the requests are far smaller than the others.
fn mixed(random: &mut Random, limit: u64) -> u64 {
    let size = if random.below(2) == 0 { 1 + random.below(8 << 10) } else { random.below(4 << 20) };
    size.clamp(1, limit)
}

/// Free ranges are apart only at boundaries, or not at all.
fn maximal(map: &[MapRange], boundary: Option<u64>) {
    for pair in map.windows(2).filter(|pair| !pair[0].used && !pair[1].used) {
        let edge = pair[1].offset;
        let boundary = boundary.expect("neighbours are apart without a boundary");
        assert!(edge.is_multiple_of(boundary), "{pair:?}");
        // One of the two is no whole segment.
        let starts = pair[0].offset.is_multiple_of(boundary);
        let ends = (edge + pair[1].size).is_multiple_of(boundary);
        assert!(!starts || !ends, "{pair:?}");
    }
}

#[test]
fn figures_bins_and_map_agree_after_any_traffic() {
    let boundaries = [None, Some(4 << 20), Some((1 << 20) + 4096), Some(100_003)];
    for (seed, boundary) in boundaries.into_iter().cycle().take(12).enumerate() {
        let mut random = Random::new(seed as u64);
        let builder = OffsetAllocator::builder(1 << 28).placement(Placement::Renewal);
        let builder = boundary.into_iter().fold(builder, |builder, at| builder.boundary(at));
        let space = builder.build().unwrap();
        let limit = boundary.unwrap_or(1 << 28);
        let look = |space: &OffsetAllocator| {
            let map = space.map();
            compare(&space.metrics(), &space.bins(), &map, limit);
            maximal(&map, boundary);
        };
        let mut live: Vec<Allocation> = Vec::new();
        for step in 0..4000 {
            let filling = step % 1000 < 600;
            if random.below(10) < if filling { 7 } else { 2 } {
                live.extend(space.allocate(mixed(&mut random, limit)).ok());
            } else if !live.is_empty() {
                drop(live.swap_remove(random.below(live.len() as u64) as usize));
            }
            if step % 50 == 0 {
                look(&space);
            }
        }
        live.clear();
        look(&space);
        assert_eq!(space.metrics().free_ranges, 1, "an empty space is one free range");
        space.check().unwrap();
    }
}

#[test]
fn figures_bins_and_map_of_shards_agree() {
    let space = OffsetAllocator::builder(1 << 28).shards(4).build().unwrap();
    let mut random = Random::new(1);
    let mut live: Vec<Allocation> = Vec::new();
    for step in 0..2000 {
        live.extend(space.allocate(mixed(&mut random, 1 << 20)).ok());
        if random.below(3) > 0 {
            drop(live.swap_remove(random.below(live.len() as u64) as usize));
        }
        if step % 50 == 0 {
            compare(&space.metrics(), &space.bins(), &space.map(), 1 << 28);
        }
    }
    live.clear();
    compare(&space.metrics(), &space.bins(), &space.map(), 1 << 28);
    assert_eq!(space.metrics().free_ranges, 1);
}

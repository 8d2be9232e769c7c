//! Requests for one certain range.

use std::ops::Range;

use kvmem::offset::{AllocError, OffsetAllocator, RawAllocation};
use kvmem_testkit::random::Random;

/// Used ranges in address order, as the space should have them.
#[derive(Default)]
struct Model {
    capacity: u64,
    boundary: u64,
    live: Vec<RawAllocation>,
}

impl Model {
    fn has_room_at(&self, range: &Range<u64>) -> bool {
        range.end <= self.capacity
            && range.start / self.boundary == (range.end - 1) / self.boundary
            && self
                .live
                .iter()
                .all(|used| used.offset + used.size <= range.start || range.end <= used.offset)
    }
}

fn soak(boundary: Option<u64>, seed: u64) {
    const CAPACITY: u64 = 10_000;
    let mut builder = OffsetAllocator::builder(CAPACITY);
    if let Some(boundary) = boundary {
        builder = builder.boundary(boundary);
    }
    let space = builder.build().unwrap();
    let boundary = boundary.unwrap_or(u64::MAX);
    let mut model = Model { capacity: CAPACITY, boundary, live: Vec::new() };
    let mut random = Random::new(seed);
    let (mut placed, mut failed) = (0, 0);
    for _ in 0..1000 {
        match random.below(4) {
            0 => {
                if let Ok(raw) = space.allocate_raw(1 + random.below(300)) {
                    model.live.push(raw);
                }
            }
            1 if !model.live.is_empty() => {
                let victim = random.below(model.live.len() as u64) as usize;
                let victim = model.live.swap_remove(victim);
                assert_eq!(space.free_raw(victim.handle), Ok(victim.size));
            }
            _ => {
                let start = random.below(CAPACITY + 100);
                let range = start..start + 1 + random.below(300);
                let fits = model.has_room_at(&range);
                match space.allocate_raw_at(range.clone()) {
                    Ok(raw) => {
                        assert!(fits, "{range:?} was not free");
                        assert_eq!((raw.offset, raw.size), (start, range.end - start));
                        assert_eq!(space.resolve_raw(raw.handle), Ok(range));
                        model.live.push(raw);
                        placed += 1;
                    }
                    Err(error) => {
                        assert!(!fits, "{range:?} is free: {error}");
                        let Range { start, end } = range;
                        let not_free = AllocError::NotFree { start, end, capacity: CAPACITY };
                        assert_eq!(error, not_free);
                        failed += 1;
                    }
                }
            }
        }
        space.check().unwrap();
        let used: u64 = model.live.iter().map(|used| used.size).sum();
        assert_eq!(space.metrics().free, CAPACITY - used);
    }
    assert!(placed > 50 && failed > 50, "{placed} placed, {failed} failed");
}

#[test]
fn a_range_is_placed_exactly_if_it_is_free() {
    for seed in 0..2 {
        soak(None, seed);
        soak(Some(1000), seed);
        soak(Some(512), seed);
    }
}

/// A program that restores a space from its record gets every range back, and what was free is free
/// again.
#[test]
fn a_space_is_restored_from_a_record_in_address_order() {
    let old = OffsetAllocator::new(1 << 30).unwrap();
    let mut random = Random::new(7);
    let mut live: Vec<_> =
        (0..2000).map(|_| old.allocate_raw(1 + random.below(100_000)).unwrap()).collect();
    for _ in 0..1000 {
        let victim = random.below(live.len() as u64) as usize;
        old.free_raw(live.swap_remove(victim).handle).unwrap();
    }
    live.sort_by_key(|raw| raw.offset);
    let new = OffsetAllocator::new(1 << 30).unwrap();
    for raw in &live {
        new.allocate_raw_at(raw.offset..raw.offset + raw.size).unwrap();
    }
    new.check().unwrap();
    let (old, new) = (old.metrics(), new.metrics());
    assert_eq!((old.free, old.largest_free), (new.free, new.largest_free));
}

#[test]
fn a_request_for_a_range_that_cannot_be_had_changes_nothing() {
    let space = OffsetAllocator::builder(1 << 20).max_ranges(16).build().unwrap();
    assert_eq!(space.allocate_raw_at(5..5).map(|_| ()), Err(AllocError::ZeroSize));
    let end = u64::MAX;
    let outside = AllocError::NotFree { start: 1, end, capacity: 1 << 20 };
    assert_eq!(space.allocate_raw_at(1..end).map(|_| ()), Err(outside));
    let mut live = Vec::new();
    let full = loop {
        match space.allocate_raw_at(live.len() as u64 * 100..live.len() as u64 * 100 + 1) {
            Ok(raw) => live.push(raw),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, AllocError::TooManyRanges { .. }), "{full}");
    space.check().unwrap();
    for raw in live {
        space.free_raw(raw.handle).unwrap();
    }
    assert_eq!(space.metrics().largest_free, 1 << 20);
}

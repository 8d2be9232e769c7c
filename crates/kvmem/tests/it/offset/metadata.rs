//! Metadata follows the live set, in both directions.

use std::mem::size_of;

use kvmem::offset::{Allocation, OffsetAllocator, RawHandle};

use kvmem_testkit::random::Random;

use super::space;

const LIVE: u64 = 250_000;
const SIZE: u64 = 4096;

fn many() -> (OffsetAllocator, u64, Vec<Allocation>) {
    let space = OffsetAllocator::new(1 << 40).unwrap();
    let at_start = space.metrics().metadata_bytes;
    let live = (0..LIVE).map(|_| space.allocate(SIZE).unwrap()).collect();
    (space, at_start, live)
}

#[test]
fn forty_bytes_an_allocation() {
    let (space, at_start, live) = many();
    assert!(at_start < 64 << 10, "an empty space of 1 TiB costs {at_start} bytes");
    let metrics = space.metrics();
    assert_eq!((metrics.live, metrics.allocated), (LIVE, LIVE * SIZE));
    let each = metrics.metadata_bytes as f64 / LIVE as f64 + size_of::<Allocation>() as f64;
    assert!(each <= 40.0, "{each} bytes for each live allocation, its handle included");
    assert!(each > 24.0, "{each} bytes cannot be all: the chain alone has 16");
    drop(live);
    let left = space.metrics();
    assert_eq!((left.live, left.free_ranges, left.largest_free), (0, 1, 1 << 40));
    assert!(
        left.metadata_bytes < at_start + (64 << 10),
        "{} bytes are left of {at_start}",
        left.metadata_bytes
    );
}

/// One allocation in a thousand survives, anywhere: the metadata of the others must be freed.
#[test]
fn survivors_do_not_hold_the_metadata_of_freed_ranges() {
    let (space, _, mut live) = many();
    let peak = space.metrics().metadata_bytes;
    let mut random = Random::new(3);
    while live.len() as u64 > LIVE / 1000 {
        drop(live.swap_remove(random.below(live.len() as u64) as usize));
    }
    let left = space.metrics();
    eprintln!("{peak} bytes for {LIVE}, {} for {}", left.metadata_bytes, left.live);
    assert!(left.metadata_bytes * 6 < peak, "{} bytes of {peak} are left", left.metadata_bytes);
    space.check().unwrap();
    drop(live);
    let empty = space.metrics().metadata_bytes;
    assert!(empty * 64 < peak, "{empty} bytes of {peak} are left of an empty space");
}

/// Up and down a hundred times: the metadata grows neither from that nor with the number of
/// operations.
#[test]
fn metadata_does_not_creep() {
    let space = OffsetAllocator::new(1 << 40).unwrap();
    let mut random = Random::new(4);
    let mut after_first = 0;
    for round in 0..100 {
        let mut live: Vec<Allocation> =
            (0..3000).map(|_| space.allocate(1 + random.below(1 << 20)).unwrap()).collect();
        while !live.is_empty() {
            drop(live.swap_remove(random.below(live.len() as u64) as usize));
        }
        let left = space.metrics().metadata_bytes;
        if round == 0 {
            after_first = left;
        }
        assert!(
            left <= after_first + 16_384,
            "round {round}: {left} bytes, {after_first} after the first"
        );
    }
}

/// Hole records are compacted when most holes are used up. Those that are held back (the wilderness
/// behind the last boundary, and the small-object region) move with them.
#[test]
fn records_are_compacted_around_held_back_holes() {
    for boundary in [None, Some(1 << 20)] {
        // A full space, in which every other range is freed: ten thousand holes.
        let space = space(100 << 20, boundary);
        let mut all = space.allocate_batch(5000, 20_000).unwrap();
        while space.metrics().free > 0 {
            all.push(space.allocate(space.metrics().largest_free).unwrap());
        }
        all.sort_unstable_by_key(Allocation::offset);
        let mut at = 0u32;
        let (even, odd): (Vec<_>, Vec<_>) = all.into_iter().partition(|_| {
            at += 1;
            at.is_multiple_of(2)
        });
        drop(even);
        // Behind them in the table: the wilderness behind the last boundary, and the region for
        // small objects beside large ones.
        space.grow_to(1 << 32).unwrap();
        let (mut crumbs, mut bulk) = (Vec::new(), Vec::new());
        for i in 0..2000 {
            match i % 3 {
                0 => crumbs.push(space.allocate(8).unwrap()),
                _ => bulk.push(space.allocate(60_000 + i).unwrap()),
            }
        }
        let many = space.metrics();
        assert!(many.free_ranges > 5000, "{many:?}");
        drop(odd);
        let few = space.metrics();
        assert!(
            few.free_ranges < 1000 && few.metadata_bytes + 100_000 < many.metadata_bytes,
            "{many:?} → {few:?}"
        );
        space.check().unwrap();
        // The bytes held back can still be allocated and freed.
        crumbs.extend((0..5000).map(|_| space.allocate(8).unwrap()));
        let rest = space.allocate(space.metrics().largest_free).unwrap();
        space.check().unwrap();
        drop((crumbs, bulk, rest));
        assert_eq!(space.metrics().largest_free, boundary.unwrap_or(1 << 32));
        space.check().unwrap();
    }
}

/// A boundary divides free room into segments in the metadata; once all is free, they are one
/// again.
#[test]
fn free_segments_are_coalesced() {
    for capacity in [1 << 30, (1 << 30) + 4097] {
        let space = space(capacity, Some(64 << 10));
        let at_start = space.metrics();
        let mut random = Random::new(5);
        let mut live = space.allocate_batch(64 << 10, 1 << 14).unwrap();
        live.extend(space.allocate(capacity - (1 << 30)));
        let full = space.metrics();
        assert_eq!((full.free, full.free_ranges), (0, 0));
        while !live.is_empty() {
            drop(live.swap_remove(random.below(live.len() as u64) as usize));
        }
        let left = space.metrics();
        assert_eq!((left.free_ranges, left.largest_free), (1, 64 << 10));
        assert!(
            left.metadata_bytes < at_start.metadata_bytes + (64 << 10),
            "{at_start:?} → {left:?}"
        );
        space.check().unwrap();
    }
}

/// The additional metadata of a raw allocation is created and freed with it.
#[test]
fn handles_leave_nothing_behind() {
    let space = OffsetAllocator::new(1 << 30).unwrap();
    let before = space.metrics().metadata_bytes;
    let handles: Vec<RawHandle> =
        (0..50_000).map(|_| space.allocate_raw(100).unwrap().handle).collect();
    let peak = space.metrics().metadata_bytes;
    for handle in handles {
        space.free_raw(handle).unwrap();
    }
    let after = space.metrics().metadata_bytes;
    assert!(
        peak > before + 50_000 * 16 && after < before + 32_768,
        "{before} → {peak} → {after} bytes"
    );
}

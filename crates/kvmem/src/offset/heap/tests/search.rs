//! The search: which hole a request is cut from, and from which end, beside a plain statement of
//! its rules that reads all holes that it may.

use std::iter::{once, successors};

use kvmem_testkit::random::Random;

use super::super::chunked_table::NIL;
use super::super::heap::Heap;
use super::super::ranges::Placed;
use super::super::search::FLOOR_ENTRIES;
use crate::offset::placement::{HoleEnd, Placement};

/// Exact holes that are compared.
const EXACT: usize = 4;

/// How a request was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    FirstExact,
    BestExact,
    FirstFit,
    Best,
    BetterEnd,
}

/// Returns where the search will place `size` bytes, and by which rule.
fn expected(heap: &Heap, size: u64) -> Option<(u64, By)> {
    let (ranges, bins) = (&heap.ranges, heap.ranges.bins());
    let (lists, count) = (bins.lists(), ranges.chain().live());
    let mut policy = heap.policy.clone();
    let scarce = heap.free_bytes() <= heap.capacity() / 2;
    let weighs = scarce && policy.weighs(count);
    let own = lists.list_of(size);
    let first: Vec<u32> = lists.holes_of(own).take(FLOOR_ENTRIES).collect();
    let longer = first.iter().position(|&id| bins[id].size > size);
    let read = if weighs { first.len() } else { longer.unwrap_or(first.len()) };
    if let Some(&exact) = first[..read].iter().find(|&&id| bins[id].size == size) {
        if !weighs || !policy.weighs_exact(size, count) {
            return Some((bins[exact].offset, By::FirstExact));
        }
        policy.refresh(count);
        let exact = once(exact).chain(lists.after(exact).take(EXACT - 1));
        let score = |id| policy.weigh_exact(size, ranges.neighbour_sizes(id));
        let scores = exact.filter(|&id| bins[id].size == size).map(|id| (score(id), id));
        let best = scores.reduce(|best, it| if it.0 > best.0 { it } else { best })?;
        return Some((bins[best.1].offset, By::BestExact));
    }
    let fits = |&id: &u32| bins[id].size >= size;
    let above = |list| lists.above(list).map(|list| lists.first(list));
    let behind = || lists.holes_of(own).skip(FLOOR_ENTRIES).find(fits);
    let found = longer.map(|at| first[at]).or_else(|| above(own)).or_else(behind)?;
    if !weighs {
        return Some((bins[found].offset, By::FirstFit));
    }
    policy.refresh(count);
    let next = |&id: &u32| {
        let further = lists.after(id).take(FLOOR_ENTRIES).find(fits);
        further.or_else(|| above(lists.list_id_of(id)))
    };
    let candidates = policy.candidates(size, count);
    let score = |id: u32| policy.weigh(bins[id].size, size, || ranges.neighbour_sizes(id));
    let (id, end, by) = if candidates > 1 {
        let fitting = successors(Some(found), next).take(candidates).map(|id| (score(id), id));
        let best = fitting.reduce(|best, it| if it.0.0 > best.0.0 { it } else { best })?;
        (best.1, best.0.1, By::Best)
    } else {
        let end = policy.better_end(bins[found].size - size, ranges.neighbour_sizes(found));
        (found, end, By::BetterEnd)
    };
    let rest = bins[id].size - size;
    Some((bins[id].offset + if end == HoleEnd::High { rest } else { 0 }, by))
}

/// Runs traffic of these sizes in a space that is nearly full, and compares each placement. Returns
/// the rules that placed requests.
fn placed_by(
    placement: Placement,
    capacity: u64,
    steps: u64,
    size: fn(&mut Random) -> u64,
) -> Vec<By> {
    let mut heap = Heap::new(0..capacity, None, placement, u32::MAX);
    heap.fresh = false;
    let mut random = Random::new(capacity);
    let mut live: Vec<(Placed, u64)> = Vec::new();
    let mut rules = Vec::new();
    for step in 0..steps {
        let size = size(&mut random);
        heap.coalesce();
        let expected = expected(&heap, size);
        // At first and now and then, half of the space is emptied.
        let frees = if step % 200 == 50 { live.len() / 2 } else { 1 };
        match heap.fit(size) {
            Some(placed) => {
                let (offset, by) = expected.expect("no hole fits");
                assert_eq!(placed.offset, offset, "{by:?} of {size} bytes at step {step}");
                heap.policy.record(size);
                live.push((placed, size));
                rules.push(by);
            }
            None => assert_eq!(expected, None),
        }
        let full = heap.free_bytes() < capacity / 8;
        for _ in 0..if full || frees > 1 { frees } else { 0 } {
            let (Placed { node, offset }, size) =
                live.swap_remove(random.below(live.len() as u64) as usize);
            heap.free(node, offset, size);
        }
    }
    heap.check().unwrap();
    rules
}

fn count(rules: &[By], rule: By) -> usize {
    rules.iter().filter(|&&it| it == rule).count()
}

#[test]
fn requests_of_few_sizes_take_the_best_of_a_few_holes() {
    let few = |random: &mut Random| [20_000, 30_000, 50_000, 70_000][random.below(4) as usize];
    let rules = placed_by(Placement::Renewal, 1 << 21, 1500, few);
    assert!(count(&rules, By::BestExact) > 100 && count(&rules, By::Best) > 100);
    let one = placed_by(Placement::Renewal, (1 << 20) + 777, 500, |_| 10_000);
    assert!(count(&one, By::FirstExact) > 50 && count(&one, By::BestExact) == 0);
    // In one bin, most holes are too short for most requests.
    let near = |random: &mut Random| (1 << 16) + random.below(9) * 100;
    let rules = placed_by(Placement::Renewal, 6 << 20, 1500, near);
    assert!(count(&rules, By::BestExact) + count(&rules, By::Best) > 100);
}

#[test]
fn requests_of_many_sizes_take_the_first_hole_and_its_better_end() {
    let many = |random: &mut Random| 1000 + random.below(60_000);
    let rules = placed_by(Placement::Renewal, 1 << 21, 1500, many);
    assert!(count(&rules, By::BetterEnd) > 200);
    let short = |random: &mut Random| 100 + random.log_below(60_000);
    let rules = placed_by(Placement::Renewal, 1 << 21, 1500, short);
    assert!(count(&rules, By::Best) > 20 && count(&rules, By::BetterEnd) > 20);
}

#[test]
fn the_first_hole_that_fits_is_cut_where_nothing_is_weighed() {
    let many = |random: &mut Random| 1000 + random.below(60_000);
    let rules = placed_by(Placement::BestFit, 1 << 21, 1000, many);
    assert_eq!(count(&rules, By::FirstFit) + count(&rules, By::FirstExact), rules.len());
    let near = |random: &mut Random| (1 << 16) + random.below(9) * 100;
    let rules = placed_by(Placement::BestFit, 6 << 20, 1000, near);
    assert!(count(&rules, By::FirstExact) > 50 && count(&rules, By::FirstFit) > 50);
}

/// Returns a heap with holes of these sizes, each list in this order, and where they begin.
/// Between them are ranges of a byte.
fn with_holes(placement: Placement, sizes: &[u64]) -> (Heap, Vec<u64>) {
    let capacity = sizes.iter().map(|size| size + 1).sum();
    let mut heap = Heap::new(0..capacity, None, placement, u32::MAX);
    let mut holes = Vec::new();
    for &size in sizes {
        holes.push((heap.allocate(size).unwrap(), size));
        heap.allocate(1).unwrap();
    }
    for &(Placed { node, offset }, size) in holes.iter().rev() {
        heap.free(node, offset, size);
        heap.coalesce();
    }
    (heap, holes.iter().map(|(placed, _)| placed.offset).collect())
}

const SIZE: u64 = 1 << 20;

#[test]
fn the_first_entries_of_the_own_bin_come_first_and_its_others_last() {
    // The first one that is long enough, although the next one is exact.
    let (mut heap, at) =
        with_holes(Placement::BestFit, &[SIZE, SIZE + 99, SIZE + 50, SIZE + 20_000]);
    assert_eq!(heap.fit(SIZE + 50).map(|placed| placed.offset), Some(at[1]));
    heap.check().unwrap();
    // The next bin, and only without one the entries behind the first.
    for others in [vec![SIZE + 20_000], vec![]] {
        let mut sizes = vec![SIZE + 1; FLOOR_ENTRIES + 1];
        sizes.extend([SIZE + 60, SIZE + 50]);
        sizes.extend(&others);
        let (mut heap, at) = with_holes(Placement::BestFit, &sizes);
        let expected = if others.is_empty() { at[FLOOR_ENTRIES + 1] } else { at[sizes.len() - 1] };
        assert_eq!(heap.fit(SIZE + 50).map(|placed| placed.offset), Some(expected));
        heap.check().unwrap();
    }
}

/// In a space of many ranges nothing is weighed until it shows that sizes are few.
#[test]
fn a_large_space_weighs_when_sizes_become_few() {
    let mut heap = Heap::new(0..3000 * 64, None, Placement::Renewal, u32::MAX);
    let placed: Vec<Placed> = (0..3000).map(|_| heap.allocate(64).unwrap()).collect();
    for Placed { node, offset } in placed.into_iter().step_by(3) {
        heap.free(node, offset, 64);
    }
    heap.coalesce();
    let weighs = |heap: &Heap| heap.policy.weighs(heap.ranges.chain().live());
    assert!(!weighs(&heap));
    heap.fit(64).unwrap();
    assert!(weighs(&heap));
}

/// The tightest bins are examined first. A bin that is certain to fit comes next, and before the
/// request fails, all holes of about its size and above.
#[test]
fn an_aligned_request_takes_the_tightest_hole() {
    let align = 4096;
    // A byte too far on for an aligned start, and in the own bin.
    let tight = |heap: &Heap, at: u64| !at.is_multiple_of(align) && heap.limit() > 0;
    let certain = super::super::bins::bin_size_max(super::super::bins::bin_floor(SIZE)) + 1;
    let size = certain - (align - 1) - 1;
    // Holes of up to `certain - 1`, which is what an aligned start is certain to fit into, are in
    // the bin below that of `certain`.
    let mut sizes = vec![size; 30];
    sizes.extend([certain, 2 * certain]);
    let (mut heap, at) = with_holes(Placement::BestFit, &sizes);
    assert!(at[1..30].iter().all(|&at| tight(&heap, at)));
    let first = heap.allocate_aligned(size, align).unwrap();
    assert_eq!(first.offset, at[0], "one of the tight holes has an aligned start");
    let next = heap.allocate_aligned(size, align).unwrap();
    assert!((at[30]..at[30] + align).contains(&next.offset), "{} of {at:?}", next.offset);
    heap.check().unwrap();
    // Only one hole has an aligned start, behind many that are shorter.
    let mut sizes = vec![SIZE - 1];
    sizes.extend(vec![SIZE + 5000; 40]);
    let (mut heap, at) = with_holes(Placement::BestFit, &sizes);
    let last = *at.last().unwrap();
    let start = last.next_multiple_of(align);
    let size = last + SIZE + 5000 - start;
    let fits = |at: &&u64| at.next_multiple_of(align) + size <= **at + SIZE + 5000;
    let first = *at[1..].iter().find(fits).unwrap();
    let found = heap.allocate_aligned(size, align).unwrap();
    assert_eq!(found.offset, first.next_multiple_of(align));
    heap.check().unwrap();
}

/// An aligned request reads on behind holes of its own bin that are a little too short.
#[test]
fn an_aligned_request_passes_holes_that_are_too_short() {
    let size = SIZE + 9000;
    let mut sizes = vec![SIZE + 4000; 30];
    sizes.push(size + 64);
    let (mut heap, at) = with_holes(Placement::BestFit, &sizes);
    let found = heap.allocate_aligned(size, 32).unwrap();
    assert_eq!(found.offset, at[30].next_multiple_of(32));
    heap.check().unwrap();
}

/// A request takes the start of a slot, unless a hole has just its length.
#[test]
fn an_exact_hole_comes_before_a_slot() {
    let slot = SIZE + 100;
    let (mut heap, at) = with_holes(Placement::Renewal, &[2 * slot, SIZE, SIZE + 9, SIZE]);
    let first = heap.ranges.bins().lists().first(heap.ranges.bins().lists().list_of(SIZE));
    assert!(first != NIL && heap.ranges.bins()[first].offset == at[1]);
    assert!(heap.fit_slot(SIZE, slot).is_none(), "a hole is exact");
    let placed = heap.fit_slot(SIZE + 1, slot).unwrap();
    assert_eq!((placed.offset, heap.ranges.size_of(placed)), (0, SIZE + 1));
    heap.check().unwrap();
}

/// A region is a quarter of the mean request in whole pages, within limits.
#[test]
fn a_region_is_a_quarter_of_the_mean() {
    let region = |capacity: u64, boundary, size: u64| {
        let mut heap = Heap::new(0..capacity, boundary, Placement::Renewal, u32::MAX);
        (0..16).for_each(|_| heap.policy.record(1_000_000));
        heap.region_size(size)
    };
    assert_eq!(region(1 << 30, None, 100), 61 * 4096);
    assert_eq!(region(1 << 22, None, 100), 1 << 16, "a 64th of the space");
    assert_eq!(region(1 << 30, Some(1 << 15), 100), 1 << 15);
    assert_eq!(region(1 << 22, None, 70_000), 70_000, "the request");
}

/// A range grows into the small-object region and the hole before it.
#[test]
fn a_range_grows_into_the_region_behind_it() {
    let mut heap = Heap::new(0..1 << 22, None, Placement::Renewal, u32::MAX);
    heap.fresh = false;
    (0..16).for_each(|at| heap.policy.record(if at % 2 == 0 { 100 } else { 80_000 }));
    let first = heap.fit(80_000).unwrap();
    assert_eq!(first.offset, 0);
    let small = heap.allocate_in_region(100).unwrap();
    assert!(heap.ranges.region_holds(1) && small.offset == (1 << 22) - 100);
    let max = (1 << 22) - 100;
    assert_eq!(heap.extend(first, 80_000, max + 1), Err(max));
    assert_eq!(heap.extend(first, 80_000, max), Ok(()));
    assert_eq!((heap.free_bytes(), heap.size_of(first)), (0, max));
    heap.check().unwrap();
}

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::super::bins::Bins;
use super::super::holes::Hole;
use super::super::lists::LIST_MAX;
use super::super::splits::{LISTS, MAX_SPLITS, Split};
use crate::offset::steps;

/// Inserts holes of these sizes and removes them in another order; the lists stay correct
/// throughout.
fn insert_and_remove(sizes: &[u64], stride: usize) {
    let mut bins = Bins::new();
    let ids: Vec<u32> = sizes.iter().map(|&size| bins.insert(Hole::new(0, size, 0))).collect();
    assert_eq!(bins.check(), Ok(ids.len() as u32));
    let mut sorted = sizes.to_vec();
    sorted.sort_unstable();
    let listed: Vec<u64> = bins.lists().holes_from(1).map(|id| bins[id].size).collect();
    assert_eq!(listed.len(), sizes.len());
    let (steps, found) = steps::of(|| bins.lists().list_of(sorted[sorted.len() / 2]));
    assert!(steps < 2 * LIST_MAX as usize && bins.lists().holes_of(found).next().is_some());
    let mut left: BTreeMap<u64, u32> = Default::default();
    sizes.iter().for_each(|&size| *left.entry(size).or_default() += 1);
    for i in 0..ids.len() {
        let id = ids[i * stride % ids.len()];
        let size = bins[id].size;
        let (steps, _) = steps::of(|| bins.remove(id));
        assert!(steps < 400, "{steps} steps");
        let count = left.get_mut(&size).unwrap();
        *count -= 1;
        if *count == 0 {
            left.remove(&size);
        }
        let (steps, largest) = steps::of(|| bins.largest());
        assert!(steps < 100, "{steps} steps");
        assert_eq!(largest, left.last_key_value().map_or(0, |(&size, _)| size));
        if i % 97 == 0 {
            assert_eq!(bins.check(), Ok((ids.len() - i - 1) as u32));
        }
    }
    assert_eq!(bins.check(), Ok(0));
    assert!(bins.lists().splits.live() == 0);
}

#[test]
fn long_bins_are_split_and_merged() {
    insert_and_remove(&(0..5000).map(|i| (1 << 20) + i * 3 % 16_384).collect::<Vec<_>>(), 1237);
    insert_and_remove(&(0..5000).map(|i| (1 << 50) + i % 70).collect::<Vec<_>>(), 1237);
    insert_and_remove(&[1 << 62; 3000], 7);
    insert_and_remove(&[77; 3000], 7);
    insert_and_remove(&[[1 << 40, (1 << 40) + 1]; 1000].concat(), 999);
    insert_and_remove(&(1..4000).map(|i| i * i).collect::<Vec<_>>(), 1000);
}

/// A bin of one size is not split; another size costs one or two splits, however far away it
/// is.
#[test]
fn few_sizes_need_few_splits() {
    let mut bins = Bins::new();
    let base = 1 << 40;
    for _ in 0..1000 {
        bins.insert(Hole::new(0, base + 12_345, 0));
    }
    assert_eq!(bins.lists().splits.live(), 0);
    let (steps, far) = steps::of(|| bins.insert(Hole::new(0, base + (1 << 33), 0)));
    assert!(steps < 2 * LIST_MAX as usize && bins.lists().splits.live() == 2, "{steps} steps");
    for size in [base, base + 12_344, base + 70_000, base + (1 << 33) + 1] {
        let own = bins.lists().list_of(size);
        let above = bins.lists().above(own).map(|list| bins.lists().sizes_of(list).0);
        let least = if size < base + (1 << 33) { base + (1 << 33) } else { 0 };
        let expected = if size < base + 12_345 { base + 12_345 } else { least };
        // The list of the far hole is wide.
        assert!(above.unwrap_or(0) <= expected && bins.check() == Ok(1001), "{size}");
        assert!(above.is_some() || size > base + (1 << 33));
    }
    bins.remove(far);
    assert_eq!(bins.check(), Ok(1000));
    assert!(bins.lists().splits.live() <= 1);
    let near = bins.insert(Hole::new(0, base + 12_346, 0));
    assert_eq!(bins.check(), Ok(1001));
    bins.remove(near);
    assert_eq!(bins.check(), Ok(1000));
    assert_eq!(bins.lists().splits.live(), 0);
    while bins.largest() > 0 {
        let id = bins.lists().holes_from(1).next().unwrap();
        bins.remove(id);
    }
    assert_eq!(bins.check(), Ok(0));
}

/// Changes a hole to another size.
fn change(bins: &mut Bins, id: u32, offset: u64, size: u64) {
    match size.cmp(&bins[id].size) {
        Ordering::Less => bins.shrink(id, offset, size),
        Ordering::Equal => bins[id].offset = offset,
        Ordering::Greater => bins.grow(id, offset, size),
    }
}

/// A hole of a uniform list changes its size within the bin.
#[test]
fn a_size_changes_within_a_uniform_bin() {
    let mut bins = Bins::new();
    let base = 1 << 40;
    let same: Vec<u32> = (0..100).map(|_| bins.insert(Hole::new(0, base, 0))).collect();
    for (i, id) in (1..).zip(same) {
        change(&mut bins, id, 0, base + i % 7);
        assert_eq!(bins.check(), Ok(100));
        assert_eq!(bins.largest(), base + i.min(6));
    }
}

/// The size that fills a bin is removed before the others.
#[test]
fn a_uniform_list_empties_within_splits() {
    let base = 1 << 40;
    for others in [vec![1], vec![1 << 33], vec![1, 1 << 33], (1..200).map(|i| i << 20).collect()] {
        let mut bins = Bins::new();
        let same: Vec<u32> = (0..100).map(|_| bins.insert(Hole::new(0, base, 0))).collect();
        let other = |&size: &u64| bins.insert(Hole::new(0, base + size, 0));
        let rest: Vec<u32> = others.iter().map(other).collect();
        let more: Vec<u32> = (0..100).map(|_| bins.insert(Hole::new(0, base, 0))).collect();
        assert_eq!(bins.check(), Ok(200 + rest.len() as u32));
        for id in same.into_iter().chain(more) {
            change(&mut bins, id, 7, base + 5);
            assert!(bins.check().is_ok(), "{:?}", bins.check());
            change(&mut bins, id, 7, base);
            bins.remove(id);
        }
        assert_eq!(bins.check(), Ok(rest.len() as u32));
        for id in rest {
            bins.remove(id);
        }
        assert_eq!((bins.check(), bins.largest()), (Ok(0), 0));
        assert!(bins.lists().splits.live() == 0);
    }
}

/// Without numbers for more splits the lists are long, and correct.
#[test]
fn the_numbers_of_splits_run_out() {
    for max in [0, 1, 2, 5] {
        let mut bins = Bins::new();
        bins.lists_mut().splits.set_max(max);
        let sizes = (0..2000u64).map(|i| (1 << 40) + i * i * 7919 % (1 << 34));
        let ids: Vec<u32> = sizes.map(|size| bins.insert(Hole::new(0, size, 0))).collect();
        assert_eq!(bins.lists().holes_from(1).count(), 2000);
        assert!(
            bins.lists().splits.live() <= max
                && bins.lists().splits.has_free_number() == (bins.lists().splits.live() < max)
        );
        for id in ids.iter().step_by(2) {
            bins.remove(*id);
        }
        bins.lists_mut().splits.set_max(MAX_SPLITS);
        for i in 0..1000 {
            bins.insert(Hole::new(0, (1 << 40) + i, 0));
        }
        let listed = bins.lists().holes_down_from(1 << 41).count();
        assert_eq!(listed, 2000);
    }
}

#[test]
fn lists_are_walked_in_order_both_ways() {
    let mut bins = Bins::new();
    for i in 0..3000u64 {
        bins.insert(Hole::new(0, 1 + i * i * i % 100_000_007, 0));
    }
    bins.insert(Hole::new(0, 1, 0));
    let up: Vec<u32> = bins.lists().holes_from(1).map(|id| bins[id].list_id).collect();
    let mut lists = up.clone();
    lists.dedup();
    let ranges: Vec<_> = lists.iter().map(|&list_id| bins.lists().sizes_of(list_id).0).collect();
    assert!(ranges.is_sorted());
    let mut down: Vec<u32> =
        bins.lists().holes_down_from(100_000_007).map(|id| bins[id].list_id).collect();
    down.dedup();
    down.reverse();
    assert_eq!((up.len(), lists), (3001, down));
}

/// Sizes below and above a split have lists of their own, which lie before and behind all others.
#[test]
fn a_split_has_an_end_on_each_side() {
    let split = Split::new(0, 1 << 20, 3);
    assert_eq!((split.min, split.min_of(1)), (1 << 20, (1 << 20) + 8));
    let below = split.list_for(0);
    assert!(below >= LISTS);
    let max = (1 << 20) + 8 * LISTS as u64 - 1;
    for (size, list) in [
        ((1 << 20) - 1, below),
        (1 << 20, 0),
        ((1 << 20) + 7, 0),
        ((1 << 20) + 8, 1),
        (max, LISTS - 1),
        (max + 1, below + 1),
        (max + 8, below + 1),
        (max + 9, below + 1),
        (u64::MAX, below + 1),
    ] {
        assert_eq!(split.list_for(size), list, "{size}");
    }
}

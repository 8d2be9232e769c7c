//! Random histories of holes that come, change and go, beside a list of their sizes.

use kvmem_testkit::random::Random;

use super::super::super::chunked_table::NIL;
use super::super::bins::Bins;
use super::super::holes::Hole;
use super::super::lists::LIST_MAX;

/// Bins, and the binned holes and those held back, with their sizes.
struct BinHistory {
    bins: Bins,
    binned: Vec<(u32, u64)>,
    held: Vec<(u32, u64)>,
    random: Random,
    size: fn(&mut Random) -> u64,
}

impl BinHistory {
    fn new(seed: u64, size: fn(&mut Random) -> u64) -> Self {
        let random = Random::new(seed);
        BinHistory { bins: Bins::new(), binned: vec![], held: vec![], random, size }
    }

    /// Returns where one of the binned holes is, mostly one of those of a size that is frequent.
    fn any(&mut self) -> usize {
        let size = (self.size)(&mut self.random);
        let alike = self.binned.iter().position(|&(_, it)| it == size);
        alike.unwrap_or_else(|| self.random.below(self.binned.len() as u64) as usize)
    }

    fn insert(&mut self) {
        let size = (self.size)(&mut self.random);
        self.binned.push((self.bins.insert(Hole::new(0, size, 0)), size));
    }

    fn remove(&mut self) {
        let at = self.any();
        let (id, size) = self.binned.swap_remove(at);
        assert_eq!(self.bins.remove(id).size, size);
    }

    /// Changes the size of a hole, which may absorb another one.
    fn change(&mut self) {
        let (at, size) = (self.any(), (self.size)(&mut self.random));
        let (id, before) = self.binned[at];
        if size < before {
            self.bins.shrink(id, 0, size);
            self.binned[at].1 = size;
        } else if size > before {
            self.bins.grow(id, 0, size);
            self.binned[at].1 = size;
        } else if self.binned.len() > 1 {
            let other = (at + 1) % self.binned.len();
            let (absorbed, more) = self.binned[other];
            self.bins.remove_uncounted(absorbed, self.bins[absorbed]);
            self.bins.grow(id, 0, before + more);
            self.binned[at].1 = before + more;
            self.binned.swap_remove(other);
        }
    }

    /// Holds a hole back, or returns one.
    fn hold(&mut self) {
        if self.held.len() > 3 {
            let at = self.random.below(4) as usize;
            let (id, size) = self.held.swap_remove(at);
            if self.random.once_in(2) {
                assert_eq!(self.bins.remove_held_back(id).size, size);
            } else {
                self.bins.push(id);
                self.binned.push((id, size));
            }
        } else if self.random.once_in(4) {
            let size = (self.size)(&mut self.random);
            self.held.push((self.bins.insert_held_back(Hole::new(0, size, 0)), size));
        } else {
            let at = self.any();
            let (id, size) = self.binned.swap_remove(at);
            self.bins.pull(id);
            self.held.push((id, size));
        }
    }

    fn move_down(&mut self) {
        let Some((old, new)) = self.bins.move_slot_down() else { return };
        let holes = self.binned.iter_mut().chain(&mut self.held);
        for (id, _) in holes.filter(|(id, _)| *id == old) {
            *id = new;
        }
    }

    fn step(&mut self, grows: bool) {
        let kind = self.random.below(20);
        match kind {
            _ if self.binned.is_empty() => self.insert(),
            0 | 1 => self.change(),
            2 => self.hold(),
            3 => self.move_down(),
            4..16 if grows => self.insert(),
            16.. if !grows => self.insert(),
            _ => self.remove(),
        }
    }

    fn compare(&mut self) {
        let (bins, binned) = (&mut self.bins, &self.binned);
        assert_eq!(bins.check(), Ok(binned.len() as u32));
        assert_eq!(bins.live() as usize, binned.len() + self.held.len());
        let largest = binned.iter().map(|&(_, size)| size).max().unwrap_or(0);
        assert!(bins.largest_bound() >= largest);
        assert_eq!(bins.largest(), largest);
        assert_eq!((bins.largest_bound(), bins.has_hole_of(largest)), (largest, largest > 0));
        assert!(!bins.has_hole_of(largest + 1));
        let lists = bins.lists();
        for &(id, size) in binned {
            let list = lists.list_id_of(id);
            assert_eq!((bins[id].size, bins[id].is_binned()), (size, true));
            assert_eq!(lists.list_of(size), list);
            let (min, width_log2) = lists.sizes_of(list);
            assert!(size >= min && size - min < 1 << width_log2);
        }
        assert!(self.held.iter().all(|&(id, size)| bins[id].size == size && !bins[id].is_binned()));
        let top = lists.top().map(|top| lists.first(top));
        assert_eq!(top.is_some_and(|first| first != NIL), largest > 0);
        // From any size on, all holes that are at least as long are found, and no list is empty.
        let some = match binned.is_empty() {
            true => 1000,
            false => binned[self.random.below(binned.len() as u64) as usize].1,
        };
        for size in [some, some + 1, some - 1, (self.size)(&mut self.random)] {
            let sorted = |ids: &mut dyn Iterator<Item = u32>| {
                let mut sizes: Vec<u64> = ids.map(|id| bins[id].size).collect();
                sizes.sort_unstable();
                sizes
            };
            let own = |from: bool| {
                let mut sizes: Vec<u64> = binned.iter().map(|&(_, size)| size).collect();
                sizes.retain(|&it| if from { it >= size } else { it <= size });
                sizes.sort_unstable();
                sizes
            };
            let up = sorted(&mut lists.holes_from(size).filter(|&id| bins[id].size >= size));
            assert_eq!(up, own(true), "from {size}");
            let down = sorted(&mut lists.holes_down_from(size).filter(|&id| bins[id].size <= size));
            assert_eq!(down, own(false), "down from {size}");
            let next = [lists.above(lists.list_of(size)), lists.below(lists.list_of(size))];
            for list in next.into_iter().flatten() {
                let mut holes = lists.holes_of(list);
                let first = bins[holes.next().expect("a list that is found has a hole")].size;
                if lists.is_of_one_size(list) {
                    assert!(holes.all(|id| bins[id].size == first));
                }
            }
        }
    }
}

/// Runs a history in which the number of holes rises and falls between these.
fn run(seed: u64, size: fn(&mut Random) -> u64, targets: &[usize]) {
    run_behind(0, seed, size, targets);
}

/// Runs such a history, each time behind so long a uniform list that it becomes part of a split.
fn run_behind(uniform: u64, seed: u64, size: fn(&mut Random) -> u64, targets: &[usize]) {
    let mut history = BinHistory::new(seed, size);
    for &target in targets {
        if uniform > 0 && history.binned.is_empty() {
            let hole = Hole::new(0, uniform, 0);
            let alike = (0..LIST_MAX + 20).map(|_| (history.bins.insert(hole), uniform));
            history.binned.extend(alike);
        }
        for step in 0.. {
            let len = history.binned.len();
            if len == target {
                break;
            }
            history.step(len < target);
            if step % 24 == 0 {
                history.compare();
            }
        }
        history.compare();
    }
    for (id, _) in history.held.drain(..) {
        history.bins.remove_held_back(id);
    }
    assert_eq!((history.bins.check(), history.bins.live()), (Ok(0), 0));
    assert_eq!(history.bins.lists().splits.live(), 0);
}

const BASE: u64 = 1 << 40;

#[test]
fn sizes_of_one_bin() {
    run(1, |random| BASE + random.below(1 << 34), &[300, 10, 700, 150, 260, 0]);
}

#[test]
fn few_sizes_far_from_each_other() {
    // More than half have one size, which is in the middle of the bin.
    let size = |random: &mut Random| match random.below(8) {
        0..5 => BASE + (1 << 33) + 12_345,
        5 => BASE + random.below(3) * 70_000,
        6 => BASE + (1 << 33) + random.below(100) * 1000,
        _ => BASE + random.below(1 << 34),
    };
    run(2, size, &[400, 20, 250, 30, 500, 0]);
    let uniform = BASE + (1 << 33) + 12_345;
    run_behind(uniform, 5, size, &[400, 20, 250, 0, 230, 5, 300, 0]);
}

#[test]
fn neighbouring_sizes() {
    run(3, |random| (1 << 50) + random.below(70), &[800, 100, 400, 0, 250, 0]);
}

#[test]
fn all_sizes() {
    let size = |random: &mut Random| match random.below(3) {
        0 => 77,
        1 => 1 + random.log_below(1 << 62),
        _ => (1 << 20) + random.below(16_384),
    };
    run(4, size, &[500, 60, 350, 0]);
}

/// A long uniform list that became short is a plain list when another size comes, and a split only
/// when it is long.
#[test]
fn a_uniform_list_is_split_when_it_is_long() {
    let max = u64::from(LIST_MAX);
    for (longest, left) in [(max + 5, 3), (max + 5, max - 1), (max + 9, max), (max + 9, max + 1)] {
        let mut bins = Bins::new();
        let alike: Vec<u32> = (0..longest).map(|_| bins.insert(Hole::new(0, BASE, 0))).collect();
        assert!(bins.lists().is_uniform(bins.lists().list_of(BASE)));
        for &id in &alike[..(longest - left) as usize] {
            bins.remove(id);
        }
        let other = bins.insert(Hole::new(0, BASE + 9, 0));
        assert_eq!(bins.check(), Ok(left as u32 + 1));
        assert_eq!(bins.lists().splits.live() > 0, left >= max, "{left} of {longest}");
        bins.remove(other);
        assert_eq!(bins.check(), Ok(left as u32));
    }
}

/// A split with an uncounted list stays within a wider one, whatever the number of that: the
/// numbers begin with 0, whose first list has the first id that is no bin's.
#[test]
fn an_uncounted_list_stays_in_the_first_list_of_the_first_split() {
    let mut bins = Bins::new();
    let max = u64::from(LIST_MAX);
    // Split 0, in another bin.
    let others: Vec<u32> =
        (0..=max).map(|i| bins.insert(Hole::new(0, (1 << 30) + 1000 * i, 0))).collect();
    // Split 1, with an uncounted list.
    (0..=max).for_each(|_| _ = bins.insert(Hole::new(0, BASE, 0)));
    let near = bins.insert(Hole::new(0, BASE + 1, 0));
    assert_eq!(bins.lists().splits.live(), 2);
    others.into_iter().for_each(|id| _ = bins.remove(id));
    // Split 0 again, around the other one.
    let far = bins.insert(Hole::new(0, BASE + (1 << 33), 0));
    assert_eq!((bins.lists().splits.live(), bins.check()), (2, Ok(max as u32 + 3)));
    bins.remove(near);
    assert_eq!((bins.lists().splits.live(), bins.check()), (2, Ok(max as u32 + 2)));
    bins.remove(far);
    assert_eq!(bins.check(), Ok(max as u32 + 1));
    let again = bins.insert(Hole::new(0, BASE + 1, 0));
    assert_eq!(bins.check(), Ok(max as u32 + 2));
    bins.remove(again);
    assert_eq!(bins.check(), Ok(max as u32 + 1));
}

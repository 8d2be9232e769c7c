//! Placement by age, and choice of victims by their neighbours: what both would bring.
//!
//! A simulation of a full tier: keys are drawn at random, a value that is missing is stored, and
//! others are evicted until it has room. It has no device, but the allocator of a tier.

use std::collections::{BTreeMap, HashMap};

use kvmem::offset::{Allocation, OffsetAllocator, RawHandle};
use kvmem_testkit::random::Random;

/// Blocks of the space.
const BLOCKS: u64 = 1 << 14;
/// Values that are evicted first, among which neighbours choose.
const CANDIDATES: usize = 8;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Placement {
    /// Where the allocator of the tier puts it.
    Fit,
    /// Behind the value that was stored before, so values of one age are neighbours.
    Age,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Victim {
    /// The value used least recently.
    Oldest,
    /// Of the [`CANDIDATES`] used least recently, the one that leaves the longest free range.
    Neighbours,
}

/// A value in the space: its ranges, and when it was used.
struct Placed {
    ranges: Vec<(u64, u64, RawHandle)>,
    used: u64,
}

struct Simulation {
    space: OffsetAllocator,
    /// The free ranges by their start, and the ends of the same by their starts.
    free: BTreeMap<u64, u64>,
    values: HashMap<u64, Placed>,
    order: BTreeMap<u64, u64>,
    /// Where the last value ended.
    cursor: u64,
    now: u64,
    max_ranges: usize,
    placement: Placement,
    victim: Victim,
}

impl Simulation {
    fn new(max_ranges: usize, placement: Placement, victim: Victim) -> Simulation {
        Simulation {
            space: OffsetAllocator::new(BLOCKS).unwrap(),
            free: BTreeMap::from([(0, BLOCKS)]),
            values: HashMap::new(),
            order: BTreeMap::new(),
            cursor: 0,
            now: 0,
            max_ranges,
            placement,
            victim,
        }
    }

    fn free_blocks(&self) -> u64 {
        self.space.metrics().free
    }

    /// Uses the value of a key; returns whether there is one.
    fn is_hit(&mut self, key: u64) -> bool {
        self.now += 1;
        let Some(value) = self.values.get_mut(&key) else { return false };
        self.order.remove(&value.used);
        value.used = self.now;
        self.order.insert(self.now, key);
        true
    }

    /// Takes a free range out of the map.
    fn take(&mut self, start: u64, len: u64) {
        let (&at, &whole) = self.free.range(..=start).next_back().expect("it is free");
        assert!(start + len <= at + whole);
        self.free.remove(&at);
        if at < start {
            self.free.insert(at, start - at);
        }
        if start + len < at + whole {
            self.free.insert(start + len, at + whole - start - len);
        }
    }

    /// Puts a range into the map.
    fn give(&mut self, mut start: u64, mut len: u64) {
        if let Some(behind) = self.free.remove(&(start + len)) {
            len += behind;
        }
        if let Some((&before, &whole)) = self.free.range(..start).next_back()
            && before + whole == start
        {
            self.free.remove(&before);
            (start, len) = (before, len + whole);
        }
        self.free.insert(start, len);
    }

    /// Returns the first free range with the given number of blocks behind the last value.
    fn behind_cursor(&self, blocks: u64) -> Option<u64> {
        let behind = self.free.range(self.cursor..).chain(self.free.range(..self.cursor));
        behind.filter(|(_, len)| **len >= blocks).map(|(&start, _)| start).next()
    }

    /// Places a value; returns its number of ranges, or `None` if none are long enough.
    fn place(&mut self, key: u64, blocks: u64) -> Option<usize> {
        let one = match self.placement {
            Placement::Fit => self.space.allocate_raw(blocks).ok(),
            Placement::Age => self
                .behind_cursor(blocks)
                .map(|start| self.space.allocate_raw_at(start..start + blocks).unwrap()),
        };
        let ranges = match one {
            Some(range) => vec![(range.offset, blocks, range.handle)],
            None if self.max_ranges > 1 => {
                let found = self.space.allocate_scattered(blocks, self.max_ranges).ok()?;
                let part = |range: Allocation| (range.offset(), range.len(), range.into_raw());
                found.into_iter().map(part).collect()
            }
            None => return None,
        };
        for &(start, len, _) in &ranges {
            self.take(start, len);
            self.cursor = start + len;
        }
        let count = ranges.len();
        self.values.insert(key, Placed { ranges, used: self.now });
        self.order.insert(self.now, key);
        Some(count)
    }

    /// Returns the longest free range that is there when a value is gone.
    fn longest_without(&self, key: u64) -> u64 {
        let around = |&(start, len, _): &(u64, u64, RawHandle)| {
            let before = self.free.range(..start).next_back();
            let before = before.filter(|(at, len)| *at + *len == start).map_or(0, |(_, len)| *len);
            before + len + self.free.get(&(start + len)).copied().unwrap_or(0)
        };
        self.values[&key].ranges.iter().map(around).max().unwrap_or(0)
    }

    fn evict(&mut self) {
        let mut first = self.order.values().copied().take(CANDIDATES);
        let key = match self.victim {
            Victim::Oldest => first.next(),
            Victim::Neighbours => first.max_by_key(|&key| self.longest_without(key)),
        };
        let gone = self.values.remove(&key.expect("there are values")).unwrap();
        self.order.remove(&gone.used);
        for (start, len, handle) in gone.ranges {
            self.space.free_raw(handle).unwrap();
            self.give(start, len);
        }
    }
}

/// Figures of a run.
#[derive(Debug)]
struct Row {
    /// The mean share of the space in use when a value is stored.
    utilization: f64,
    /// Of 10,000 values stored, placements that failed although enough blocks were free.
    failed: f64,
    /// Share of the values in several ranges, of the keys that were found, and of their blocks.
    divided: f64,
    hits: f64,
    hit_blocks: f64,
}

/// The blocks of the value of a key.
type Lengths = fn(u64) -> u64;

/// A number that is random and always the same for a key.
fn mixed(key: u64) -> u64 {
    Random::new(key).bits()
}

fn run(
    lengths: Lengths,
    max_ranges: usize,
    placement: Placement,
    victim: Victim,
    stores: u64,
) -> Row {
    let mut simulation = Simulation::new(max_ranges, placement, victim);
    let mut random = Random::new(1);
    let mean = (0..1000).map(lengths).sum::<u64>() / 1000;
    // Of this many keys a twelfth fits.
    let keys = 12 * BLOCKS / mean;
    let (mut stored, mut failed, mut divided, mut used, mut samples) = (0_u64, 0_u64, 0_u64, 0, 0);
    // Of keys, and of their blocks.
    let (mut hits, mut requested) = ([0_u64; 2], [0_u64; 2]);
    while stored < stores {
        let key = random.below(keys);
        let counts = stored > stores / 2;
        let blocks = lengths(key);
        let one = if counts { [1, blocks] } else { [0; 2] };
        requested = [requested[0] + one[0], requested[1] + one[1]];
        if simulation.is_hit(key) {
            hits = [hits[0] + one[0], hits[1] + one[1]];
            continue;
        }
        loop {
            let free = simulation.free_blocks();
            if let Some(ranges) = simulation.place(key, blocks) {
                divided += u64::from(counts && ranges > 1);
                break;
            }
            if counts {
                failed += u64::from(free >= blocks);
                used += BLOCKS - free;
                samples += 1;
            }
            simulation.evict();
        }
        stored += 1;
    }
    let counted = (stores - stores / 2) as f64;
    Row {
        utilization: used as f64 / samples as f64 / BLOCKS as f64,
        failed: failed as f64 * 10_000.0 / counted,
        divided: divided as f64 / counted,
        hits: hits[0] as f64 / requested[0] as f64,
        hit_blocks: hits[1] as f64 / requested[1] as f64,
    }
}

const KINDS: [(&str, Lengths); 4] = [
    ("512 KiB", |_| 128),
    ("128 KiB, every fourth 3 MiB", |key| if key % 4 == 0 { 768 } else { 32 }),
    ("16 KiB to 2 MiB, uniform", |key| 4 + mixed(key) % 508),
    ("4 KiB to 4 MiB, powers of two", |key| 1 << (mixed(key) % 11)),
];

const POLICIES: [(Placement, Victim); 4] = [
    (Placement::Fit, Victim::Oldest),
    (Placement::Age, Victim::Oldest),
    (Placement::Fit, Victim::Neighbours),
    (Placement::Age, Victim::Neighbours),
];

/// Prints the table of the decision about placement.
#[test]
#[ignore = "a measurement"]
fn table_of_placements() {
    for max_ranges in [1, 4] {
        for (name, lengths) in KINDS {
            for (placement, victim) in POLICIES {
                let row = run(lengths, max_ranges, placement, victim, 40_000);
                println!(
                    "| {max_ranges} | {name} | {placement:?} | {victim:?} | {:.3} | {:.0} | {:.1} \
                     % | {:.1} % | {:.1} % |",
                    row.utilization,
                    row.failed,
                    100.0 * row.divided,
                    100.0 * row.hits,
                    100.0 * row.hit_blocks
                );
            }
        }
    }
}

/// With up to four ranges a value finds its place nearly whenever enough is free, so neither policy
/// has much to gain; and in one range it does not.
#[test]
fn several_ranges_leave_nothing_to_gain_by_placement() {
    let (_, uniform) = KINDS[2];
    let own = run(uniform, 4, Placement::Fit, Victim::Oldest, 4000);
    let one = run(uniform, 1, Placement::Fit, Victim::Oldest, 4000);
    assert!(own.failed < one.failed, "{own:?}, {one:?}");
    assert!(own.utilization > one.utilization + 0.05, "{own:?}, {one:?}");
    for (placement, victim) in POLICIES {
        let other = run(uniform, 4, placement, victim, 4000);
        let gain = other.utilization - own.utilization;
        assert!(gain < 0.02, "{placement:?}, {victim:?}: {other:?}, {own:?}");
    }
}

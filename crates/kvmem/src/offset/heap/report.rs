//! *Report*: the figures and the map of a space.
//!
//! Both count the same free ranges. The small-object region is held back from the bins, apart from
//! the adjacent free ranges; a report counts them as the one range that they are.

use std::collections::BTreeMap;

use super::bins::{bin_floor, bin_size_max, bin_size_min};
use super::heap::Heap;
use super::ranges::SENTINEL;

crate::stats! {
    /// Figures of a space at one moment. Sizes are bytes.
    pub struct Metrics: Clone Copy Debug Default PartialEq Eq {
        /// Length of the space.
        capacity: u64,
        /// Bytes in use: exactly the requested sizes, since sizes are not rounded.
        allocated: u64,
        /// Bytes not in use.
        free: u64,
        /// The longest range that could be allocated now.
        largest_free: u64,
        /// Allocations alive.
        live: u64,
        /// Free ranges, as many as in the map. Neighbours are coalesced, except at boundaries:
        /// there, only segments that are wholly free are.
        free_ranges: u64,
        /// Heap memory of the metadata.
        metadata_bytes: u64,
    }
}

impl Metrics {
    /// Adds the figures of another space, whose free ranges are apart from those of this one.
    pub(crate) fn add(&mut self, other: &Metrics) {
        self.capacity += other.capacity;
        self.allocated += other.allocated;
        self.free += other.free;
        self.largest_free = self.largest_free.max(other.largest_free);
        self.live += other.live;
        self.free_ranges += other.free_ranges;
        self.metadata_bytes += other.metadata_bytes;
    }

    /// Returns the share of the free bytes outside the longest free range: 0 if all free bytes are
    /// in one range, towards 1 the more they are scattered.
    pub fn fragmentation(&self) -> f64 {
        if self.free == 0 { 0.0 } else { 1.0 - self.largest_free as f64 / self.free as f64 }
    }

    /// Returns the share of the space in use.
    pub fn utilization(&self) -> f64 {
        if self.capacity == 0 { 0.0 } else { self.allocated as f64 / self.capacity as f64 }
    }
}

/// The free ranges of one bin. All sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BinReport {
    /// Least size that falls into the bin.
    pub size_min: u64,
    /// Greatest size that falls into the bin.
    pub size_max: u64,
    /// Free ranges in it.
    pub ranges: u64,
    /// Their sum.
    pub bytes: u64,
}

/// One range of the map. Offsets and sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapRange {
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub size: u64,
    /// Whether it is one allocation; otherwise it is one free range of [`Metrics::free_ranges`].
    pub used: bool,
}

impl Heap {
    pub(crate) fn metrics(&mut self) -> Metrics {
        self.coalesce();
        Metrics {
            capacity: self.capacity(),
            allocated: self.ranges.allocated(),
            free: self.free_bytes(),
            largest_free: self.largest_free(),
            live: self.live(),
            free_ranges: self.free_ranges(),
            metadata_bytes: (size_of::<Heap>() + self.ranges.bytes() + self.policy.bytes()) as u64,
        }
    }

    /// Returns the number of free ranges, with nothing deferred.
    fn free_ranges(&self) -> u64 {
        let holes = u64::from(self.ranges.bins().live());
        holes + 1 - self.region_holes().count().max(1) as u64
    }

    /// Returns the holes that closing the small-object region would make one, at most five.
    fn region_holes(&self) -> impl Iterator<Item = u32> {
        let chain = self.ranges.chain();
        let nodes = self.ranges.coalesced_region_nodes();
        let mut next = nodes.map(|(first, _)| first);
        std::iter::from_fn(move || {
            let node = next?;
            next = nodes.filter(|&(_, last)| node != last).map(|_| chain[node].next);
            chain[node].hole()
        })
    }

    pub(crate) fn bin_reports(&mut self) -> Vec<BinReport> {
        self.coalesce();
        let empty = |bin| BinReport {
            size_min: bin_size_min(bin),
            size_max: bin_size_max(bin),
            ranges: 0,
            bytes: 0,
        };
        let mut reports: Vec<BinReport> = (0..=bin_floor(self.capacity())).map(empty).collect();
        let bins = self.ranges.bins();
        let mut count = |size: u64| {
            let report = &mut reports[bin_floor(size) as usize];
            report.ranges += 1;
            report.bytes += size;
        };
        let region: Vec<u32> = self.region_holes().collect();
        if !region.is_empty() {
            count(region.iter().map(|&id| bins[id].size).sum());
        }
        // Holes held back are listed with the other holes of their size.
        for id in bins.lists().holes_from(1).chain(self.ranges.held_back()) {
            if !region.contains(&id) {
                count(bins[id].size);
            }
        }
        reports.retain(|report| report.ranges > 0);
        reports
    }

    pub(crate) fn map(&mut self) -> Vec<MapRange> {
        self.coalesce();
        let chain = self.ranges.chain();
        let (first, last) = self.ranges.coalesced_region_nodes().unwrap_or((SENTINEL, SENTINEL));
        let mut map: Vec<MapRange> = Vec::with_capacity(chain.live() as usize);
        let mut node = chain[SENTINEL].next;
        while node != SENTINEL {
            let offset = self.ranges.start_of(node);
            let used = chain[node].hole().is_none();
            let end_node = if node == first { last } else { node };
            let next = chain[end_node].next;
            map.push(MapRange { offset, size: self.ranges.start_of(next) - offset, used });
            node = next;
        }
        map
    }
}

/// Returns a report for every bin that a free range of the map falls into, by ascending size.
pub(crate) fn bin_reports(map: &[MapRange]) -> Vec<BinReport> {
    let mut reports: BTreeMap<u32, BinReport> = BTreeMap::new();
    for MapRange { size, .. } in map.iter().filter(|range| !range.used) {
        let bin = bin_floor(*size);
        let report = reports.entry(bin).or_insert_with(|| BinReport {
            size_min: bin_size_min(bin),
            size_max: bin_size_max(bin),
            ranges: 0,
            bytes: 0,
        });
        report.ranges += 1;
        report.bytes += size;
    }
    reports.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Metrics = Metrics {
        capacity: 100,
        allocated: 75,
        free: 25,
        largest_free: 20,
        live: 3,
        free_ranges: 2,
        metadata_bytes: 1000,
    };

    #[test]
    fn figures_of_spaces_are_sums_but_for_the_longest() {
        let two = Metrics {
            capacity: 7,
            allocated: 3,
            free: 4,
            largest_free: 4,
            live: 5,
            free_ranges: 6,
            metadata_bytes: 11,
        };
        let mut sum = ONE;
        sum.add(&two);
        let expected = Metrics {
            capacity: 107,
            allocated: 78,
            free: 29,
            largest_free: 20,
            live: 8,
            free_ranges: 8,
            metadata_bytes: 1011,
        };
        assert_eq!(sum, expected);
        let mut sum = two;
        sum.add(&ONE);
        assert_eq!(sum, expected);
    }

    #[test]
    fn shares_are_of_the_free_bytes_and_of_the_space() {
        let near = |share: f64, expected: f64| (share - expected).abs() < 1e-12;
        assert!(near(ONE.fragmentation(), 0.2) && near(ONE.utilization(), 0.75));
        let full = Metrics { free: 0, largest_free: 0, allocated: 100, ..ONE };
        assert!(near(full.fragmentation(), 0.0) && near(full.utilization(), 1.0));
        let empty = Metrics { free: 100, largest_free: 100, allocated: 0, ..ONE };
        assert!(near(empty.fragmentation(), 0.0) && near(empty.utilization(), 0.0));
        assert!(near(Metrics::default().utilization(), 0.0));
    }
}

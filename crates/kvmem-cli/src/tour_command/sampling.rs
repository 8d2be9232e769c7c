//! *Sampling*: what the pool looked like while it served, in so many samples.

use std::hash::Hash;

use kvmem::pool::KvCache;
use kvmem::slab::ExtentState;

use crate::address_map::Map;

/// How many samples are taken.
const SAMPLES: usize = 96;

/// All samples so far.
#[derive(Clone, Debug)]
pub(super) struct Sampling {
    capacity: u64,
    samples: Vec<Sample>,
}

/// The pool at one time.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Bytes asked for before.
    pub(super) requested: u64,
    /// Look-ups before, and those that found something.
    pub(super) lookups: u64,
    pub(super) hits: u64,
    /// Objects evicted before.
    pub(super) evictions: u64,
    /// The share of the pool that objects have.
    pub(super) utilization: f64,
    /// Where they lie.
    pub(super) map: Map,
}

impl Sampling {
    /// No samples yet, of a pool of so many bytes.
    pub(super) fn new(capacity: u64) -> Sampling {
        Sampling { capacity, samples: Vec::new() }
    }

    /// The samples, in order.
    pub(super) fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Bytes of the pool.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Whether another is due when such a share of everything is done.
    pub(super) fn is_due(&self, done: f64) -> bool {
        done * SAMPLES as f64 >= (self.samples.len() + 1) as f64
    }

    /// Takes one, with so many bytes asked for, in the place of one with hardly fewer: from what
    /// little lies between two no rate can be told. O(ranges of the pool).
    pub(super) fn take<K: Hash + Eq>(&mut self, requested: u64, cache: &KvCache<K>) {
        let stats = cache.stats();
        let map = cache.pool().map();
        let used = map.iter().filter(|range| range.state == ExtentState::Used);
        let used: Vec<_> = used.map(|range| range.offset..range.offset + range.size).collect();
        let sample = Sample {
            requested,
            lookups: stats.hits + stats.misses,
            hits: stats.hits,
            evictions: stats.evictions,
            utilization: stats.bytes as f64 / self.capacity.max(1) as f64,
            map: Map::of(self.capacity, &used, |_| {}),
        };
        let near = requested / (2 * SAMPLES as u64);
        if self.samples.last().is_some_and(|last| requested - last.requested.min(requested) <= near)
        {
            self.samples.pop();
        }
        self.samples.push(sample);
    }

    /// The mean utilization since something was evicted first; `None` if nothing was.
    pub(super) fn utilization_full(&self) -> Option<f64> {
        let full: Vec<f64> = self
            .samples
            .iter()
            .filter(|sample| sample.evictions > 0)
            .map(|sample| sample.utilization)
            .collect();
        (!full.is_empty()).then(|| full.iter().sum::<f64>() / full.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use kvmem::arena::PageSize;
    use kvmem::pool::Pool;

    use super::*;

    #[test]
    fn a_map_shows_what_is_used_and_where_holes_begin() {
        let (pool, _) = Pool::builder(1 << 20).ladder(PageSize::Base).build().expect("1 MiB");
        let cache: KvCache<u32> = KvCache::new(&pool);
        let mut sampling = Sampling::new(pool.capacity());
        sampling.take(0, &cache);
        for key in 0..4 {
            cache.insert_with(key, 64 << 10, |_| {}).expect("room");
        }
        drop(cache.remove(&1));
        sampling.take(1 << 20, &cache);
        let [empty, some] = sampling.samples() else { panic!("two samples") };
        assert_eq!((empty.utilization, empty.map.used[0], empty.map.free_ranges()), (0.0, 0.0, 1));
        assert_eq!(some.utilization, 3.0 / 16.0);
        let used: f32 = some.map.used.iter().sum();
        assert!((used - 12.0).abs() < 1e-3, "three sixteenths of 64 cells: {used}");
        assert_eq!(sampling.utilization_full(), None, "nothing was evicted");
        assert!(!sampling.is_due(0.0) && sampling.is_due(0.5));
    }
}

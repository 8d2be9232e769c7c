//! *Sampling*: the state of the pool during a replay, in bounded memory.
//!
//! A sample is taken once every N bytes of the trace. If the length of the trace is known, N is
//! chosen so that there will be [`SAMPLES`]. Otherwise every second sample is dropped and N doubled
//! as soon as there are twice as many.
//!
//! Sorting half a million objects takes some ten milliseconds, so a replay is sampled on request
//! only.

use std::ops::Range;

use super::store::Store;
use crate::address_map::Map;

/// Number of samples to take; at most twice as many are kept.
pub const SAMPLES: usize = 96;
/// Bytes of a trace of unknown length before the second sample.
const FIRST: u64 = 16 << 10;

/// All samples so far.
#[derive(Debug)]
pub struct ReplaySamples {
    /// Bytes of the trace between two samples.
    step: u64,
    /// Bytes of the trace at which the next sample is due.
    next: u64,
    samples: Vec<ReplaySample>,
    /// The free ranges at the last sample: number and bytes of those of 2^n to 2^(n+1) bytes.
    free: Vec<(u64, u64)>,
    spans: Vec<Range<u64>>,
}

/// The work of all threads so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoFar {
    /// Requests.
    pub requests: u64,
    /// Requested blocks.
    pub blocks: u64,
    /// Blocks that were hits.
    pub hits: u64,
}

/// The pool at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplaySample {
    /// Requests served so far.
    pub requests: u64,
    /// Requested bytes of the held blocks over the pool.
    pub utilization: f64,
    /// Blocks requested so far.
    pub blocks: u64,
    /// Blocks that were hits.
    pub hits: u64,
    /// The address map; `None` if the allocator returns no offsets.
    pub map: Option<Map>,
}

impl ReplaySamples {
    /// Makes an empty record for a trace of this many bytes, if that is known.
    pub fn new(trace_bytes: Option<u64>) -> ReplaySamples {
        let step = trace_bytes.map_or(FIRST, |bytes| bytes / SAMPLES as u64).max(1);
        ReplaySamples { step, next: 0, samples: Vec::new(), free: Vec::new(), spans: Vec::new() }
    }

    /// Returns the samples, in order.
    pub fn samples(&self) -> &[ReplaySample] {
        &self.samples
    }

    /// The free ranges at the last sample: number and bytes of those of 2^n to 2^(n+1) bytes.
    pub fn free(&self) -> &[(u64, u64)] {
        &self.free
    }

    /// Whether a sample is due after this many bytes of the trace.
    pub fn is_due(&self, position: u64) -> bool {
        position >= self.next
    }

    /// Takes a sample if one is due.
    pub fn look<S: Store>(&mut self, position: u64, store: &S, pool_bytes: u64, so_far: SoFar) {
        if !self.is_due(position) {
            return;
        }
        self.take(store, pool_bytes, so_far);
        if self.samples.len() >= 2 * SAMPLES {
            let mut number = 0;
            self.samples.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.step *= 2;
        }
        self.next = position + self.step;
    }

    /// Takes the last sample.
    pub fn finish<S: Store>(&mut self, store: &S, pool_bytes: u64, so_far: SoFar) {
        if self.samples.last().is_some_and(|last| last.requests == so_far.requests) {
            self.samples.pop();
        }
        self.take(store, pool_bytes, so_far);
    }

    fn take<S: Store>(&mut self, store: &S, pool_bytes: u64, so_far: SoFar) {
        self.spans.clear();
        let map = store.spans(&mut self.spans).then(|| {
            self.spans.sort_unstable_by_key(|span| span.start);
            self.map(pool_bytes)
        });
        let SoFar { requests, blocks, hits } = so_far;
        let utilization = store.bytes() as f64 / pool_bytes as f64;
        self.samples.push(ReplaySample { requests, utilization, blocks, hits, map });
    }

    /// Makes the map of `spans` and counts the free ranges.
    fn map(&mut self, pool_bytes: u64) -> Map {
        let ReplaySamples { spans, free, .. } = self;
        free.clear();
        Map::of(pool_bytes, spans, |hole| {
            let bytes = hole.end - hole.start;
            let size = bytes.ilog2() as usize;
            free.resize(free.len().max(size + 1), (0, 0));
            free[size].0 += 1;
            free[size].1 += bytes;
        })
    }
}

#[cfg(test)]
mod tests {
    use kvmem::cache::Eviction;

    use super::super::backing;
    use super::super::pooled::Pooled;
    use super::super::worker::Worker;
    use super::*;
    use kvmem_cli::workload::model::BlockLayout;
    use kvmem_trace::Request;

    fn request(ids: &[u64]) -> Request {
        Request {
            timestamp: 0.0,
            input_length: 512 * ids.len() as u64,
            output_length: 1,
            block_tokens: 512,
            hash_ids: ids.to_vec(),
        }
    }

    #[test]
    fn free_ranges_are_counted_by_size() {
        let mut sampling = ReplaySamples::new(None);
        sampling.spans = vec![0..100, 100..150, 164..640];
        assert_eq!(sampling.map(640).free_ranges(), 1);
        assert_eq!(sampling.free, [(0, 0), (0, 0), (0, 0), (1, 14)]);
        sampling.spans.clear();
        sampling.map(640);
        assert_eq!(sampling.free.last(), Some(&(1, 640)));
    }

    #[test]
    fn samples_are_bounded_whatever_the_length() {
        let layout = BlockLayout::of_objects(&[4096], 512, 512).expect("a size");
        let pool = backing::pool(1 << 20, false, false).expect("a mebibyte of addresses");
        for known in [None, Some(100_000 * 4096)] {
            let mut sampling = ReplaySamples::new(known);
            let store = Pooled::new(&pool, false, Eviction::Lru, 1, None, None);
            let mut worker = Worker::new(&store, &layout, None);
            let so_far = |requests| SoFar { requests, blocks: requests, hits: 0 };
            for number in 1..=100_000 {
                worker.serve(&request(&[number % 300])).expect("it fits");
                sampling.look(number * 4096, &store, 1 << 20, so_far(number));
                assert!(sampling.samples().len() < 2 * SAMPLES);
            }
            sampling.finish(&store, 1 << 20, so_far(100_000));
            let samples = sampling.samples();
            assert!(samples.len() >= SAMPLES, "{}", samples.len());
            assert!(samples.windows(2).all(|two| two[0].requests < two[1].requests));
            let last = samples.last().expect("some");
            assert_eq!((last.requests, last.utilization), (100_000, 1.0));
            assert!(last.map.as_ref().is_some_and(|map| map.used.iter().all(|used| *used == 1.0)));
        }
    }
}

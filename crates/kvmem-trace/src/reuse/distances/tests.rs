//! The curve against simulations of LRU over a plain list, one for each size.

use kvmem_testkit::random::Random;
use proptest::prelude::*;

use super::*;

/// A pool of a fixed size that evicts the block that was used least recently.
struct PlainPool {
    capacity: u64,
    /// Blocks and bytes, the latest last.
    held: Vec<(u64, u64)>,
    hit_bytes: u64,
}

impl PlainPool {
    fn new(capacity: u64) -> PlainPool {
        PlainPool { capacity, held: Vec::new(), hit_bytes: 0 }
    }

    fn holds(&self, block: u64) -> bool {
        self.held.iter().any(|(other, _)| *other == block)
    }

    /// Serves a request: counts the hits of its beginning, then uses its blocks from the last.
    fn request(&mut self, blocks: &[u64], bytes: u64) {
        let hits = blocks.iter().take_while(|block| self.holds(**block)).count();
        self.hit_bytes += hits as u64 * bytes;
        for &block in blocks.iter().rev() {
            self.held.retain(|(other, _)| *other != block);
            self.held.push((block, bytes));
        }
        let mut sum: u64 = self.held.iter().map(|(_, bytes)| bytes).sum();
        while sum > self.capacity {
            sum -= self.held.remove(0).1;
        }
    }
}

/// Requests: their blocks, and the bytes of each block.
type Requests = Vec<(Vec<u64>, u64)>;

/// Conversations that grow, some of them in longer blocks than the others.
fn conversations(seed: u64, requests: usize) -> Requests {
    let mut random = Random::new(seed);
    let mut conversations: Vec<(Vec<u64>, u64)> = Vec::new();
    let mut next = 100;
    (0..requests)
        .map(|_| {
            if conversations.len() < 3 || random.once_in(4) {
                let bytes = if random.once_in(3) { 4096 } else { 1024 };
                // One of two system prompts for each length of block.
                let system = bytes / 1024 * 2 + random.below(2);
                conversations.push((vec![10 * system, 10 * system + 1], bytes));
            }
            let recent = random.log_below(conversations.len() as u64) as usize;
            let which = conversations.len() - 1 - recent;
            let (blocks, bytes) = &mut conversations[which];
            for _ in 0..1 + random.below(6) {
                blocks.push(next);
                next += 1;
            }
            (blocks.clone(), *bytes)
        })
        .collect()
}

fn distances(requests: &Requests, max_blocks: u64, rate: f64) -> ReuseDistances {
    let mut distances = ReuseDistances::new(max_blocks, rate);
    for (blocks, bytes) in requests {
        distances.request(blocks, *bytes, 64, 64 * blocks.len() as u64);
    }
    distances
}

fn simulated(requests: &Requests, capacity: u64) -> f64 {
    let mut pool = PlainPool::new(capacity);
    requests.iter().for_each(|(blocks, bytes)| pool.request(blocks, *bytes));
    let used: u64 = requests.iter().map(|(blocks, bytes)| blocks.len() as u64 * bytes).sum();
    pool.hit_bytes as f64 / used as f64
}

#[test]
fn the_curve_is_that_of_simulations_at_every_size() {
    let requests = conversations(1, 400);
    let curve = distances(&requests, 1 << 20, 1.0);
    assert_eq!(curve.rate(), 1.0);
    for size in [1, 5, 20, 77, 128, 300, 511, 1000, 3000].map(|blocks| blocks * 1024) {
        // The curve is that of the end of the step before.
        let exact = simulated(&requests, size);
        let least = simulated(&requests, size - size / 400);
        let rate = curve.hit_rate(size);
        assert!(rate <= exact + 1e-9 && rate >= least - 1e-9, "{size}: {least} {rate} {exact}");
        assert_eq!(curve.error(size), 0.0);
    }
    let whole = simulated(&requests, u64::MAX);
    assert!((curve.max_hit_rate() - whole).abs() < 1e-9);
    assert!((curve.hit_rate(u64::MAX) - whole).abs() < 1e-9);
    let (least, largest) = curve.reach_range().unwrap();
    assert!(curve.hit_rate(least - 1) == 0.0 && curve.hit_rate(least) > 0.0);
    assert!((curve.hit_rate(largest) - whole).abs() < 1e-9);
    for share in [0.1, 0.5, 0.9, 0.99, 1.0] {
        let size = curve.size_for(share * whole).unwrap();
        assert!(curve.hit_rate(size) >= share * whole - 1e-9);
        assert!(curve.hit_rate(size - 1) < share * whole);
    }
    assert_eq!(curve.size_for(whole + 0.01), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Requests of any blocks, also such that are no prefixes: the curve equals simulations. Sizes
    /// are below 512, where every size has a step of its own.
    #[test]
    fn the_curve_of_any_requests_is_that_of_simulations(
        requests in prop::collection::vec((prop::collection::vec(0u64..30, 0..12), 0u64..3), 1..60),
    ) {
        // A block has the same bytes in all requests.
        let requests: Requests = requests
            .into_iter()
            .map(|(blocks, kind)| {
                let mut blocks: Vec<u64> = blocks.iter().map(|block| 3 * block + kind).collect();
                let mut seen = std::collections::HashSet::new();
                blocks.retain(|block| seen.insert(*block));
                (blocks, [1, 2, 5][kind as usize])
            })
            .collect();
        let used: u64 = requests.iter().map(|(blocks, bytes)| blocks.len() as u64 * bytes).sum();
        let curve = distances(&requests, 1 << 20, 1.0);
        for size in (0..40).chain([60, 100, 150, 240]) {
            // A block that is larger than the pool empties it, which the curve does not know.
            if size < 5 && requests.iter().any(|(_, bytes)| *bytes > size) {
                continue;
            }
            let expected = if used > 0 { simulated(&requests, size) } else { 0.0 };
            prop_assert!((curve.hit_rate(size) - expected).abs() < 1e-9, "{size}");
        }
    }
}

#[test]
fn a_sample_is_as_near_as_it_says() {
    let requests = conversations(7, 6000);
    let exact = distances(&requests, 1 << 20, 1.0);
    let sizes: Vec<u64> = (18..32).map(|power| 1 << power).collect();
    for (max_blocks, rate) in [(1 << 20, 0.25), (1 << 20, 0.05), (4096, 1.0), (1024, 1.0)] {
        let sample = distances(&requests, max_blocks, rate);
        assert!(sample.rate() < 1.0 && sample.tracked() as u64 <= max_blocks);
        let label = format!("{max_blocks} {rate}: {} of {}", sample.tracked(), exact.tracked());
        let mut beyond = 0;
        for &size in &sizes {
            let difference = (sample.hit_rate(size) - exact.hit_rate(size)).abs();
            assert!(difference < 0.06, "{label}: {size}: {difference}");
            beyond += usize::from(difference > sample.error(size) + 0.005);
        }
        assert!(beyond <= 3, "{label}: {beyond} of {} beyond the stated error", sizes.len());
        let distinct = sample.distinct() / exact.distinct();
        assert!((distinct - 1.0).abs() < 0.15, "{label}: {distinct}");
        assert!((sample.token_hit_rate() - exact.token_hit_rate()).abs() < 0.05, "{label}");
    }
}

#[test]
fn a_trace_without_reuse_has_no_hits() {
    let requests: Requests = (0..100).map(|n| (vec![2 * n, 2 * n + 1], 10)).collect();
    for (max_blocks, rate) in [(1 << 20, 1.0), (1024, 1.0), (64, 1.0), (1 << 20, 0.001)] {
        let curve = distances(&requests, max_blocks, rate);
        assert_eq!(curve.reach_range(), None);
        assert_eq!(curve.size_for(0.5), None);
        assert_eq!(curve.reach_quantile(0.5), None);
        assert!(curve.error(1000) < 1.0);
    }
    let curve = distances(&requests, 64, 1.0);
    assert!(curve.tracked() <= 64 && (curve.used_bytes() - 2000.0).abs() < 1e-9);
}

//! *Distances* of all uses of a trace, of all blocks or of a sample.

use super::histogram::SizeHistogram;
use super::recency::RecencyTree;

/// Groups of a sample, whose curves tell its error.
pub const GROUPS: usize = 8;

/// Bits of a hash that decide whether a block is tracked.
const THRESHOLD_BITS: u32 = 32;

/// The two-sided 95 % quantile of Student's t with `GROUPS - 1` degrees of freedom.
const STUDENT_T: f64 = 2.365;

/// A sample, or all blocks.
#[derive(Clone, Debug, Default)]
struct TrackedBlocks {
    order: RecencyTree,
    /// Reach of uses that can be hits, weighed in bytes.
    reaches: SizeHistogram,
    /// Bytes of all uses, each weighed as its reach is.
    used_bytes: f64,
    /// The largest distance of the request so far; `None` after a block that was never used.
    reach: Option<f64>,
}

impl TrackedBlocks {
    /// Returns the bytes that are missing to `used_bytes`, which are taken to be hits; negative if
    /// the sample has too many. Where nothing is a hit, they are none either.
    fn missing(&self, used_bytes: f64) -> f64 {
        if self.reaches.total() > 0.0 { used_bytes - self.used_bytes } else { 0.0 }
    }

    /// Looks up a block of the request: one of `1 / rate` blocks.
    fn look_up(&mut self, block: u64, bytes: u64, rate: f64) -> bool {
        let weight = bytes as f64 / rate;
        self.used_bytes += weight;
        self.reach = match (self.reach, self.order.above(block)) {
            (Some(reach), Some((above, own))) => {
                // Its own bytes are not a sample.
                let distance = (above - own) as f64 / rate + own as f64;
                Some(reach.max(distance))
            }
            _ => None,
        };
        if let Some(reach) = self.reach {
            self.reaches.add(reach.round().max(1.0) as u64, weight);
        }
        self.reach.is_some()
    }
}

/// The bytes that would be hits, by the size of the pool.
#[derive(Clone, Debug)]
pub struct ReuseDistances {
    all: TrackedBlocks,
    /// Samples within the sample, once there is one.
    groups: Vec<TrackedBlocks>,
    /// Uses from before there was a sample.
    exact: SizeHistogram,
    exact_bytes: f64,
    /// Blocks whose hash is below are tracked.
    threshold: u64,
    max_blocks: usize,
    /// Bytes of all uses, tracked or not.
    used_bytes: f64,
    /// Tokens of all uses, of the tracked ones, and of hits.
    used_tokens: f64,
    tracked_tokens: f64,
    hit_tokens: f64,
}

impl ReuseDistances {
    /// Returns an empty record of at most `max_blocks` blocks, which begins with the share `rate`
    /// of them.
    pub fn new(max_blocks: u64, rate: f64) -> Self {
        let threshold = ((1u64 << THRESHOLD_BITS) as f64 * rate.clamp(0.0, 1.0)).round() as u64;
        let mut distances = ReuseDistances {
            all: TrackedBlocks::default(),
            groups: Vec::new(),
            exact: SizeHistogram::default(),
            exact_bytes: 0.0,
            threshold: threshold.max(1),
            max_blocks: usize::try_from(max_blocks).unwrap_or(usize::MAX).max(1),
            used_bytes: 0.0,
            used_tokens: 0.0,
            tracked_tokens: 0.0,
            hit_tokens: 0.0,
        };
        if distances.rate() < 1.0 {
            distances.begin_sampling();
        }
        distances
    }

    /// Records a request: all blocks are looked up, then used from the last to the first. A block
    /// has `block_bytes` bytes and `block_tokens` tokens, and the last one only what remains of
    /// `tokens`. O(log N) for each block, amortized.
    pub fn request(&mut self, blocks: &[u64], block_bytes: u64, block_tokens: u64, tokens: u64) {
        let (rate, threshold) = (self.rate(), self.threshold);
        for set in self.groups.iter_mut().chain([&mut self.all]) {
            set.reach = Some(0.0);
        }
        self.used_bytes += blocks.len() as f64 * block_bytes as f64;
        let mut remaining = tokens;
        for &block in blocks {
            let of_block = remaining.min(block_tokens);
            remaining -= of_block;
            self.used_tokens += of_block as f64;
            let hash = mix(block);
            if threshold_of(hash) >= threshold {
                continue;
            }
            let is_hit = self.all.look_up(block, block_bytes, rate);
            self.tracked_tokens += of_block as f64 / rate;
            self.hit_tokens += if is_hit { of_block as f64 / rate } else { 0.0 };
            if let Some(group) = self.groups.get_mut(group_of(hash)) {
                group.look_up(block, block_bytes, rate / GROUPS as f64);
            }
        }
        for &block in blocks.iter().rev() {
            let hash = mix(block);
            if threshold_of(hash) >= threshold {
                continue;
            }
            self.all.order.use_block(block, block_bytes);
            if let Some(group) = self.groups.get_mut(group_of(hash)) {
                group.order.use_block(block, block_bytes);
            }
        }
        while self.all.order.len() > self.max_blocks && self.threshold > 1 {
            self.halve();
        }
    }

    /// Forgets half of the blocks.
    fn halve(&mut self) {
        let first = self.groups.is_empty();
        self.threshold /= 2;
        let threshold = self.threshold;
        let keep = |block| threshold_of(mix(block)) < threshold;
        self.all.order.retain(keep);
        self.groups.iter_mut().for_each(|group| group.order.retain(keep));
        if first {
            self.begin_sampling();
        }
    }

    /// Divides the tracked blocks into groups; what was recorded so far is exact.
    fn begin_sampling(&mut self) {
        self.exact = self.all.reaches.clone();
        self.exact_bytes = self.all.used_bytes;
        self.groups = vec![TrackedBlocks::default(); GROUPS];
        let groups = &mut self.groups;
        self.all.order.for_each(|block, bytes| {
            groups[group_of(mix(block))].order.use_block(block, bytes);
        });
    }

    /// Returns the share of blocks that are tracked, 1 if all are.
    pub fn rate(&self) -> f64 {
        self.threshold as f64 / (1u64 << THRESHOLD_BITS) as f64
    }

    /// Returns the number of tracked blocks.
    pub fn tracked(&self) -> usize {
        self.all.order.len()
    }

    /// Returns the number of different blocks, estimated if there is a sample.
    pub fn distinct(&self) -> f64 {
        self.all.order.len() as f64 / self.rate()
    }

    /// Returns the bytes of all different blocks, estimated if there is a sample.
    pub fn distinct_bytes(&self) -> f64 {
        self.all.order.bytes() as f64 / self.rate()
    }

    /// Returns the bytes of the blocks that were used more than once, estimated if there is a
    /// sample.
    pub fn reused_bytes(&self) -> f64 {
        self.all.order.reused().0 as f64 / self.rate()
    }

    /// Returns the bytes of all uses.
    pub fn used_bytes(&self) -> f64 {
        self.used_bytes
    }

    /// Returns the share of tokens that a pool without end has.
    pub fn token_hit_rate(&self) -> f64 {
        // The tokens that the sample misses or has too many are hits, as bytes are.
        let is_reused = self.hit_tokens > 0.0;
        let missing = if is_reused { self.used_tokens - self.tracked_tokens } else { 0.0 };
        share(self.hit_tokens + missing, self.used_tokens)
    }

    /// Returns the bytes of hits that the sample misses.
    fn missing_bytes(&self) -> f64 {
        self.all.missing(self.used_bytes)
    }

    /// Returns the share of bytes that a pool of this size has. O(1): the histogram has a bounded
    /// length.
    pub fn hit_rate(&self, pool_bytes: u64) -> f64 {
        share(self.all.reaches.up_to(pool_bytes) + self.missing_bytes(), self.used_bytes)
    }

    /// Returns the share of bytes that a pool without end has.
    pub fn max_hit_rate(&self) -> f64 {
        share(self.all.reaches.total() + self.missing_bytes(), self.used_bytes)
    }

    /// Returns how far the hit rate of a pool of this size may be wrong; 0 without a sample.
    pub fn error(&self, pool_bytes: u64) -> f64 {
        if self.groups.is_empty() {
            return 0.0;
        }
        let exact = self.exact.up_to(pool_bytes);
        let rates: Vec<f64> = self
            .groups
            .iter()
            .map(|group| {
                let missing = group.missing(self.used_bytes - self.exact_bytes);
                let hits = group.reaches.up_to(pool_bytes);
                share(exact + hits + missing, self.used_bytes)
            })
            .collect();
        let mean = rates.iter().sum::<f64>() / GROUPS as f64;
        let squares: f64 = rates.iter().map(|rate| (rate - mean).powi(2)).sum();
        STUDENT_T * (squares / ((GROUPS - 1) * GROUPS) as f64).sqrt()
    }

    /// Returns the least size of a pool that reaches this hit rate; `None` if no size does.
    pub fn size_for(&self, hit_rate: f64) -> Option<u64> {
        let bytes = hit_rate * self.used_bytes - self.missing_bytes();
        match bytes > 0.0 {
            true => self.all.reaches.quantile(bytes),
            false => self.all.reaches.sums().next().map(|(size, _)| size),
        }
    }

    /// Returns the reach that this share of all uses that can be hits does not exceed; `None` if
    /// there are none.
    pub fn reach_quantile(&self, quantile: f64) -> Option<u64> {
        self.all.reaches.quantile(quantile * self.all.reaches.total())
    }

    /// Returns the ends of the curve: the least and the largest reach; `None` if nothing can be a
    /// hit.
    pub fn reach_range(&self) -> Option<(u64, u64)> {
        let mut ends = self.all.reaches.sums().map(|(size, _)| size);
        let first = ends.next()?;
        Some((first, ends.last().unwrap_or(first)))
    }
}

/// A share between 0 and 1.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 }
}

/// Spreads ids over all numbers of 64 bits: the finalizer of SplitMix64.
fn mix(id: u64) -> u64 {
    let mut z = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The bits of a hash that decide whether a block is tracked.
fn threshold_of(hash: u64) -> u64 {
    hash >> (u64::BITS - THRESHOLD_BITS)
}

/// The group of a block, by bits that do not decide whether it is tracked.
fn group_of(hash: u64) -> usize {
    hash as usize % GROUPS
}

#[cfg(test)]
mod tests;

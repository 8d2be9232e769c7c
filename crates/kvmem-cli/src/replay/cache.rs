//! A prefix cache over an allocator of offsets.
//!
//! A block is cached under its hash id, which stands for the block *and everything before it*. A request asks for its
//! ids in order. As long as they are held they are *hits*: their KV cache need not be computed again. From the first id
//! that is not held on, the rest are *misses*: the engine computes them, and they are inserted.
//!
//! When an object does not fit, the least recently used block goes, whole, and so on until it fits. Two rules keep
//! what is held useful:
//!
//! - After a request its blocks are the most recently used ones *in reverse order*, the last block being the oldest of
//!   them. A block is therefore never older than one that follows it in a prefix, goes after it, and no block is held
//!   that no request can reach.
//! - A request never evicts its own blocks. If its prompt alone exceeds the pool, its first blocks are kept and the
//!   rest is not cached.
//!
//! Hits, insertions and evictions cost O(1) hash-table operations a block, besides the allocator's own work.

use std::ops::Range;

use hashlink::LinkedHashMap;
use kvmem_bench::contender::{Contender, Held};

use super::backing::{Backing, OutsidePool};
use super::latency::{Latency, timed};
use super::model::BlockLayout;
use super::trace::{BLOCK_TOKENS, Request};

/// What happened since the cache was created.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Counters {
    /// Requests walked.
    pub requests: u64,
    /// Blocks asked for.
    pub blocks: u64,
    /// Blocks found while the prefix was held.
    pub hits: u64,
    /// Prompt tokens asked for.
    pub tokens: u64,
    /// Prompt tokens within hit blocks.
    pub hit_tokens: u64,
    /// Blocks that were held although the prefix before them was not.
    pub hits_behind_gap: u64,
    /// Blocks inserted.
    pub insertions: u64,
    /// Blocks evicted to make room.
    pub evictions: u64,
    /// Blocks that were not cached because only blocks of the same request were left to evict.
    pub not_cached: u64,
    /// Objects allocated.
    pub allocations: u64,
    /// Calls of allocate that found no room.
    pub failed_allocations: u64,
    /// Objects freed.
    pub frees: u64,
    /// Bytes whose checksum was compared when their block was found.
    pub verified_bytes: u64,
    /// Requests after which utilization was sampled: all since the first call that found no room.
    pub full_samples: u64,
    /// Sum of those samples, in bytes held.
    pub full_sum_bytes: f64,
    /// The least of those samples, in bytes held.
    pub full_min_bytes: u64,
}

/// What stops a replay.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// Not even one block fits the empty pool.
    #[error(
        "the pool is too small: a block of {objects} objects, {bytes} bytes, does not fit it even when empty"
    )]
    PoolTooSmall {
        /// Objects of a block.
        objects: usize,
        /// Bytes of a block.
        bytes: u64,
    },
    /// A block does not hold what was written to it.
    #[error("block {id} was overwritten: its checksum is {found:#010x}, it was written with {written:#010x}")]
    Mismatch {
        /// The block's hash id.
        id: u64,
        /// The checksum of what was written.
        written: u32,
        /// The checksum of what is there.
        found: u32,
    },
    /// The allocator handed out what is not in the pool.
    #[error(transparent)]
    OutsidePool(#[from] OutsidePool),
}

/// One cached block.
struct Block<H> {
    /// Dropping them frees them.
    objects: Box<[H]>,
    /// The checksum of what was written; 0 without memory behind the pool.
    checksum: u32,
    /// The request that used it last, counted from 1.
    last_request: u64,
}

/// The cache; see the module's head for its rules.
pub struct PrefixCache<C: Contender> {
    space: C,
    layout: BlockLayout,
    backing: Option<Backing>,
    /// Least recently used first.
    held: LinkedHashMap<u64, Block<C::Handle>>,
    counters: Counters,
    allocate_latency: Latency,
    no_room_latency: Latency,
}

impl<C: Contender> PrefixCache<C> {
    /// An empty cache of blocks of `layout` on `space`, with memory behind it or not.
    pub fn new(space: C, layout: BlockLayout, backing: Option<Backing>) -> Self {
        PrefixCache {
            space,
            layout,
            backing,
            held: LinkedHashMap::new(),
            counters: Counters::default(),
            allocate_latency: Latency::new(),
            no_room_latency: Latency::new(),
        }
    }

    /// Serves one request: counts its hits, inserts its misses.
    ///
    /// # Errors
    /// [`CacheError`] if a hit block is damaged, or the empty pool cannot hold a block.
    pub fn serve(&mut self, request: &Request) -> Result<(), CacheError> {
        self.counters.requests += 1;
        let now = self.counters.requests;
        let ids = &request.hash_ids;

        let hits = ids.iter().take_while(|id| self.held.contains_key(id)).count();
        for &id in &ids[..hits] {
            self.verify(id)?;
        }
        // The prefix is pinned before anything is evicted for the rest.
        self.touch(&ids[..hits], now);
        let mut cached = hits;
        for &id in &ids[hits..] {
            if self.held.contains_key(&id) {
                self.counters.hits_behind_gap += 1;
                self.verify(id)?;
                self.touch(&[id], now);
            } else if !self.insert(id, now)? {
                break;
            }
            cached += 1;
        }
        self.touch(&ids[..cached], now);

        let counters = &mut self.counters;
        counters.blocks += ids.len() as u64;
        counters.hits += hits as u64;
        counters.not_cached += (ids.len() - cached) as u64;
        counters.tokens += request.input_length;
        counters.hit_tokens += (hits as u64 * BLOCK_TOKENS).min(request.input_length);
        if counters.failed_allocations > 0 {
            let bytes = self.held_bytes();
            let counters = &mut self.counters;
            counters.full_min_bytes =
                if counters.full_samples == 0 { bytes } else { counters.full_min_bytes.min(bytes) };
            counters.full_samples += 1;
            counters.full_sum_bytes += bytes as f64;
        }
        Ok(())
    }

    /// Compares the checksum of every block held, and returns how many bytes that were.
    ///
    /// # Errors
    /// [`CacheError`] if a block is damaged.
    pub fn verify_all(&mut self) -> Result<u64, CacheError> {
        let before = self.counters.verified_bytes;
        let ids: Vec<u64> = self.held.keys().copied().collect();
        for id in ids {
            self.verify(id)?;
        }
        let verified_bytes = self.counters.verified_bytes - before;
        self.counters.verified_bytes = before;
        Ok(verified_bytes)
    }

    /// Blocks held now.
    pub fn held_blocks(&self) -> u64 {
        self.held.len() as u64
    }

    /// Bytes held now: requested sizes, whatever the allocator spends on them.
    pub fn held_bytes(&self) -> u64 {
        self.held_blocks() * self.layout.bytes()
    }

    /// Where the objects of all blocks lie, in no order.
    pub fn spans(&self) -> impl Iterator<Item = Range<u64>> {
        self.held.values().flat_map(|block| spans(&block.objects))
    }

    /// What is allocated from.
    pub fn space(&self) -> &C {
        &self.space
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The latency of every call of allocate, those that found no room included.
    pub fn allocate_latency(&self) -> &Latency {
        &self.allocate_latency
    }

    /// The latency of the calls of allocate that found no room.
    pub fn no_room_latency(&self) -> &Latency {
        &self.no_room_latency
    }

    /// Inserts the block `id`; false if that would evict a block of the same request.
    fn insert(&mut self, id: u64, now: u64) -> Result<bool, CacheError> {
        let mut objects = Vec::with_capacity(self.layout.objects().len());
        let mut number = 0;
        while number < self.layout.objects().len() {
            let size = self.layout.objects()[number];
            let (object, took) = timed(|| self.space.allocate(size));
            self.allocate_latency.record(took);
            match object {
                Some(object) => {
                    self.counters.allocations += 1;
                    objects.push(object);
                    number += 1;
                }
                None => {
                    self.counters.failed_allocations += 1;
                    self.no_room_latency.record(took);
                    if self.evict(now) {
                        continue;
                    }
                    let nothing_held = self.held.is_empty();
                    self.release(objects);
                    if nothing_held {
                        return Err(CacheError::PoolTooSmall {
                            objects: self.layout.objects().len(),
                            bytes: self.layout.bytes(),
                        });
                    }
                    return Ok(false);
                }
            }
        }
        let checksum = match &mut self.backing {
            Some(backing) => backing.write(id, spans(&objects))?,
            None => 0,
        };
        self.held.insert(id, Block { objects: objects.into(), checksum, last_request: now });
        self.counters.insertions += 1;
        Ok(true)
    }

    /// Evicts the least recently used block; false if there is none, or it belongs to the request being served.
    fn evict(&mut self, now: u64) -> bool {
        if self.held.front().is_none_or(|(_, block)| block.last_request == now) {
            return false;
        }
        if let Some((_, block)) = self.held.pop_front() {
            self.release(block.objects);
            self.counters.evictions += 1;
        }
        true
    }

    fn release(&mut self, objects: impl AsRef<[C::Handle]>) {
        self.counters.frees += objects.as_ref().len() as u64;
        drop(objects);
    }

    /// Makes `ids` the most recently used blocks, the first of them the very last to go.
    fn touch(&mut self, ids: &[u64], now: u64) {
        for id in ids.iter().rev() {
            if let Some(block) = self.held.to_back(id) {
                block.last_request = now;
            }
        }
    }

    fn verify(&mut self, id: u64) -> Result<(), CacheError> {
        let (Some(backing), Some(block)) = (&self.backing, self.held.get(&id)) else { return Ok(()) };
        let found = backing.checksum(spans(&block.objects))?;
        if found != block.checksum {
            return Err(CacheError::Mismatch { id, written: block.checksum, found });
        }
        self.counters.verified_bytes += self.layout.bytes();
        Ok(())
    }
}

/// Where the objects of a block lie.
fn spans<H: Held>(objects: &[H]) -> impl Iterator<Item = Range<u64>> {
    objects.iter().map(|object| object.offset()..object.offset().saturating_add(object.size()))
}

#[cfg(test)]
mod tests;

//! *Pooled*: objects in blocks of a pool.

use std::ops::Range;
use std::sync::Arc;

use kvmem::cache::KvCache;
use kvmem::cache::{Eviction, KvCacheError, Pinned, Reservation};
use kvmem::pool::observe::Exporter;
use kvmem::pool::{Block, Pool};
use kvmem::slab::ExtentState;
use kvmem::tier::Tier;

use super::calls::{ask, ticket};
use super::key::Key;
use super::store::{Store, StoreError};
use super::tiered::{TierUseFigures, Tiered};
use crate::ops::recorder::Recorder;
use kvmem_cli::workload::latency::timed;
use kvmem_cli::workload::object::ObjectId;

/// A cache on a pool.
pub struct Pooled {
    cache: KvCache<Key>,
    pool: Pool,
    backed: bool,
    tiered: Option<Tiered>,
}

/// Objects begin at multiples of it if there is a tier, which then needs no copies.
const ALIGN: usize = 4096;

impl Pooled {
    /// Makes an empty store. For one thread it has one shard, so its order is exact.
    pub fn new(
        pool: &Pool,
        backed: bool,
        eviction: Eviction,
        threads: u32,
        recorder: Option<Arc<Recorder>>,
        tiered: Option<Tiered>,
    ) -> Pooled {
        let align = if tiered.is_some() { ALIGN } else { 1 };
        let mut builder =
            KvCache::builder(pool).eviction(eviction).with_allocator(move |pool, len| {
                let allocate = || match align {
                    1 => pool.allocate(len),
                    _ => pool.allocate_aligned(len, align),
                };
                ask(recorder.as_ref(), len as u64, allocate, Block::offset)
            });
        if let Some(tiered) = &tiered {
            let queue: Arc<dyn Tier> = tiered.queue.clone();
            builder = builder.lower_tier(queue);
        }
        if threads == 1 {
            builder = builder.shards(1).exact_recency(true);
        }
        let cache = builder.build().expect("one shard, without limits and watermarks, is valid");
        Pooled { cache, pool: pool.clone(), backed, tiered }
    }

    /// Returns the exporter of their figures.
    pub fn exporter(&self) -> Exporter {
        Exporter::new().pool(&self.pool).cache(&self.cache)
    }
}

impl Store for Pooled {
    type Pin = Pinned<Key>;
    type Room = Reservation<Key>;

    #[inline]
    fn get(&self, id: ObjectId) -> Option<Self::Pin> {
        self.cache.get(&id)
    }

    #[inline]
    fn prefetch(&self, ids: &[ObjectId]) {
        self.cache.prefetch(ids);
    }

    fn fetch(&self, blocks: &[u64], held: usize, objects: u32, pins: &mut Vec<Self::Pin>) {
        let Some(tiered) = &self.tiered else { return };
        let ids = |block| (0..objects).map(move |number| ObjectId { block, number });
        let (held, blocks) = blocks.split_at(held);
        let is_whole =
            |&&block: &&u64| ids(block).all(|id| self.cache.contains(&id) || tiered.holds(id));
        let whole = blocks.iter().take_while(is_whole).count();
        let in_memory = |&&block: &&u64| ids(block).all(|id| self.cache.contains(&id));
        let in_memory = blocks.iter().take_while(in_memory).count();
        if whole <= in_memory {
            return;
        }
        // Pinned first: fetched blocks would evict the blocks before them.
        let held = held.iter().chain(&blocks[..in_memory]);
        let held = held.rev().flat_map(|&block| ids(block));
        pins.extend(held.filter_map(|id| self.cache.get(&id)));
        let fetch = |blocks: &[u64]| {
            let ids = blocks.iter().flat_map(|&block| ids(block));
            let keys: Vec<Key> = ids.map(|id| Key::new(id, ())).collect();
            timed(|| self.cache.get_or_fetch(&keys))
        };
        let (first, rest) = blocks[in_memory..whole].split_at(1);
        for (part, is_first) in [(first, true), (rest, false)] {
            if part.is_empty() {
                return;
            }
            let (found, took) = fetch(part);
            let mut times = tiered.times();
            if is_first {
                times.first.record(took)
            } else {
                times.rest.record(took)
            }
            pins.extend(found.into_iter().flatten());
        }
    }

    fn tier(&self) -> Option<TierUseFigures> {
        self.tiered.as_ref().map(Tiered::figures)
    }

    fn holds(&self, id: ObjectId) -> bool {
        self.cache.contains(&id)
    }

    fn reserve(
        &self,
        id: ObjectId,
        size: u64,
        depth: u32,
    ) -> Result<Option<Self::Room>, StoreError> {
        let len = usize::try_from(size).unwrap_or(usize::MAX);
        let reserved = self.cache.reserve(Key::new(id, ()), len);
        // Also after a failure: the range, if there was one, is then free again.
        let ticket = ticket();
        match reserved {
            Ok(mut room) => {
                // LRU's order is exact without, and so comparable with a plain list.
                if matches!(self.cache.eviction(), Eviction::ScanResistant) {
                    room.set_depth(depth);
                }
                room.key().answer_for(ticket);
                Ok(Some(room))
            }
            Err(KvCacheError::NothingToEvict { .. }) => Ok(None),
            Err(error) => Err(StoreError::Cache(error)),
        }
    }

    fn write(&self, room: &mut Self::Room, fill: impl FnOnce(&mut [u8])) -> Result<(), StoreError> {
        fill(room.bytes_mut());
        Ok(())
    }

    fn commit(&self, room: Self::Room) -> Self::Pin {
        room.commit()
    }

    fn read<T>(&self, pin: &Self::Pin, look: impl FnOnce(&[u8]) -> T) -> Result<T, StoreError> {
        Ok(look(pin.bytes()))
    }

    fn offset(&self, pin: &Self::Pin) -> u64 {
        pin.block().offset()
    }

    fn objects(&self) -> u64 {
        self.cache.len()
    }

    fn bytes(&self) -> u64 {
        self.cache.bytes()
    }

    fn evictions(&self) -> u64 {
        self.cache.stats().evictions
    }

    fn spans(&self, spans: &mut Vec<Range<u64>>) -> bool {
        let map = self.cache.pool().map();
        let used = map.iter().filter(|range| range.state == ExtentState::Used);
        spans.extend(used.map(|range| range.offset..range.offset + range.size));
        true
    }

    fn metadata_bytes(&self) -> Option<u64> {
        Some(self.cache.pool().metrics().metadata_bytes)
    }

    fn into_memory(self) -> Option<Block> {
        let pool = self.cache.pool().clone();
        self.cache.clear();
        pool.trim();
        // A block over untouched pages would touch them.
        self.backed.then(|| pool.allocate(usize::try_from(pool.capacity()).ok()?).ok()).flatten()
    }
}

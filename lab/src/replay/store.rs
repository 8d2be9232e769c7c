//! *Store*: objects in blocks of a pool, under their ids, as a server embeds a cache.

use std::cell::RefCell;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use kvmem::arena::{PageSize, Populate};
use kvmem::cache::KvCache;
use kvmem::cache::{Eviction, KvCacheError, Pinned, Reservation};
use kvmem::pool::{Block, Pool};
use kvmem::tier::Tier;
use kvmem_cli::workload::latency::{Latency, timed};
use kvmem_cli::workload::object::ObjectId;

use super::key::Key;
use super::tiered::Tiered;
use crate::bench::limits::available_bytes;

/// A replay cannot go on.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum StoreError {
    /// Not even one block fits the empty pool.
    #[error(
        "the pool is too small: a block of {objects} objects, {bytes} bytes, does not fit it even \
         when empty"
    )]
    PoolTooSmall { objects: usize, bytes: u64 },
    /// An object does not hold what was written to it.
    #[error(
        "object {} of block {} was overwritten: its checksum is {found:#010x}, it was written \
         with {written:#010x}",
        .object.number, .object.block
    )]
    Mismatch { object: ObjectId, written: u32, found: u32 },
    /// The cache failed for a reason that evicting cannot mend.
    #[error("the cache failed: {0}")]
    Cache(KvCacheError),
}

/// The calls of one thread to its allocator, or of several together.
#[derive(Default)]
pub struct Calls {
    /// Latency of all calls of allocate.
    pub allocate: Latency,
    /// Latency of calls that failed.
    pub no_room: Latency,
}

thread_local! {
    static CALLS: RefCell<Calls> = RefCell::default();
}

impl Calls {
    /// Takes the calls of this thread since it was last called.
    pub fn take() -> Calls {
        CALLS.take()
    }

    /// Returns the calls of allocate that succeeded.
    pub fn served(&self) -> u64 {
        self.allocate.count() - self.no_room.count()
    }

    /// Adds the calls of another thread.
    pub fn add(&mut self, other: &Calls) {
        self.allocate.add(&other.allocate);
        self.no_room.add(&other.no_room);
    }

    /// Whether a call of this thread has failed since [`Calls::take`].
    pub fn any_failed() -> bool {
        CALLS.with_borrow(|calls| calls.no_room.count() > 0)
    }

    fn record<T, E>(attempt: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let (done, took) = timed(attempt);
        CALLS.with_borrow_mut(|calls| {
            calls.allocate.record(took);
            if done.is_err() {
                calls.no_room.record(took);
            }
        });
        done
    }
}

/// Objects begin at multiples of it if there is a tier, which then needs no copies.
const ALIGN: usize = 4096;

/// Builds a pool of `pool_bytes`, rounded up to whole pages: resident if it is `backed`, else
/// addresses that are never touched and cost no memory.
pub fn pool(pool_bytes: u64, backed: bool) -> Result<Pool> {
    let available = available_bytes().filter(|_| backed).unwrap_or(u64::MAX);
    ensure!(
        pool_bytes <= available,
        "--backed fills the whole pool: {pool_bytes} bytes, but only {available} bytes of memory \
         are available; choose a smaller --pool"
    );
    let builder = Pool::builder(usize::try_from(pool_bytes).unwrap_or(usize::MAX)).name("replay");
    let builder =
        if backed { builder } else { builder.ladder(PageSize::Base).populate(Populate::None) };
    builder.build().with_context(|| format!("cannot make a pool of {pool_bytes} bytes"))
}

/// A cache on a pool. It evicts by its policy when it needs space, but never an object that is
/// pinned or being written.
pub struct Store {
    pub cache: KvCache<Key>,
    tiered: Option<Tiered>,
}

impl Store {
    /// Makes an empty store. For one thread it has one shard, so its order is exact.
    pub fn new(pool: &Pool, eviction: Eviction, threads: u32, tiered: Option<Tiered>) -> Store {
        let align = if tiered.is_some() { ALIGN } else { 1 };
        let allocate = move |pool: &Pool, len: usize| {
            Calls::record(|| match align {
                1 => pool.allocate(len),
                _ => pool.allocate_aligned(len, align),
            })
        };
        let mut builder = KvCache::builder(pool).eviction(eviction).with_allocator(allocate);
        if let Some(tiered) = &tiered {
            let queue: Arc<dyn Tier> = tiered.queue.clone();
            builder = builder.lower_tier(queue);
        }
        if threads == 1 {
            builder = builder.shards(1).exact_recency(true);
        }
        let cache = builder.build().expect("one shard, without limits, is valid");
        Store { cache, tiered }
    }

    /// Returns the tier below, if there is one.
    pub fn tier(&self) -> Option<&Tiered> {
        self.tiered.as_ref()
    }

    /// Pins the object, if it is held; this counts as a use.
    #[inline]
    pub fn get(&self, id: ObjectId) -> Option<Pinned<Key>> {
        self.cache.get_in_memory(&id)
    }

    /// Whether the object is held; this does not count as a use.
    pub fn holds(&self, id: ObjectId) -> bool {
        self.cache.contains_in_memory(&id)
    }

    /// Fetches what the tier has of these blocks, up to the first one that is not held whole, and
    /// pins it in `pins`, after the first `held` blocks, which are held. A block has `objects`
    /// objects.
    pub fn fetch(&self, blocks: &[u64], held: usize, objects: u32, pins: &mut Vec<Pinned<Key>>) {
        let Some(tiered) = &self.tiered else { return };
        let ids = |block| (0..objects).map(move |number| ObjectId { block, number });
        let (held, blocks) = blocks.split_at(held);
        let is_whole = |&&block: &&u64| {
            ids(block).all(|id| self.cache.contains_in_memory(&id) || tiered.holds(id))
        };
        let whole = blocks.iter().take_while(is_whole).count();
        let in_memory = |&&block: &&u64| ids(block).all(|id| self.cache.contains_in_memory(&id));
        let in_memory = blocks.iter().take_while(in_memory).count();
        if whole <= in_memory {
            return;
        }
        // Pinned first: fetched blocks would evict the blocks before them.
        let held = held.iter().chain(&blocks[..in_memory]);
        let held = held.rev().flat_map(|&block| ids(block));
        pins.extend(held.filter_map(|id| self.cache.get_in_memory(&id)));
        let (first, rest) = blocks[in_memory..whole].split_at(1);
        for (part, is_first) in [(first, true), (rest, false)] {
            if part.is_empty() {
                return;
            }
            let keys: Vec<Key> = part.iter().flat_map(|&block| ids(block)).map(Key).collect();
            let (found, took) = timed(|| self.cache.get_batch(&keys));
            tiered.record(is_first, took);
            pins.extend(found.into_iter().flatten());
        }
    }

    /// Reserves `size` bytes for an object with `depth` blocks of its prefix before it; `None` if
    /// all that is held is pinned or being written.
    pub fn reserve(
        &self,
        id: ObjectId,
        size: u64,
        depth: u32,
    ) -> Result<Option<Reservation<Key>>, StoreError> {
        match self.cache.reserve(Key(id), usize::try_from(size).unwrap_or(usize::MAX)) {
            Ok(mut room) => {
                // LRU's order is exact without, and so comparable with a plain list.
                if matches!(self.cache.eviction(), Eviction::ScanResistant) {
                    room.set_depth(depth);
                }
                Ok(Some(room))
            }
            Err(KvCacheError::NothingToEvict { .. }) => Ok(None),
            Err(error) => Err(StoreError::Cache(error)),
        }
    }

    /// Returns all of the memory in one block, after every object was dropped.
    pub fn into_memory(self) -> Option<Block> {
        let pool = self.cache.pool().clone();
        self.cache.clear_in_memory();
        pool.trim();
        pool.allocate(usize::try_from(pool.capacity()).ok()?).ok()
    }
}

//! *Builder*: what a cache is to be.

use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;
use std::thread;

use super::evicted::{EvictionSink, EvictionOutcome};
use super::room::Spread;
use super::source::Source;
use super::usage::Limits;
use super::{Eviction, KvCache, KvCacheSetupError, Pinned};
use crate::pool::{Block, Pool, PoolError};

/// Slots are 32 bits, and a policy keeps one number for itself.
const MOST_BLOCKS: u64 = u32::MAX as u64 - 1;
const MOST_SHARDS: usize = 1 << 12;
/// Where so few blocks would be in a shard, which of them is the oldest says little about all.
const BLOCKS_IN_SHARD: u64 = 64;

/// A cache to be. See [`KvCache::builder`].
#[must_use = "there is no cache before `build`"]
pub struct KvCacheBuilder<K> {
    pool: Pool,
    bytes: Option<u64>,
    blocks: Option<u64>,
    watermarks: Option<(u64, u64)>,
    eviction: Eviction,
    shards: Option<usize>,
    exact: bool,
    seed: Option<u64>,
    source: Source,
    sink: EvictionSink<K>,
    keys: PhantomData<fn() -> K>,
}

impl<K: Hash + Eq> KvCacheBuilder<K> {
    pub(super) fn new(pool: Pool) -> Self {
        let (eviction, source) = (Eviction::default(), Source::Pool);
        let keys = PhantomData;
        KvCacheBuilder {
            pool,
            bytes: None,
            blocks: None,
            watermarks: None,
            eviction,
            shards: None,
            exact: false,
            seed: None,
            source,
            sink: None,
            keys,
        }
    }

    /// At most so many bytes are held, those being written included. Default: as many as find room
    /// in the pool.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// At most so many blocks are held, those being written included. Default: about 2^32.
    pub fn max_blocks(mut self, blocks: u64) -> Self {
        self.blocks = Some(blocks);
        self
    }

    /// When an insertion leaves more than `high` bytes, it evicts down to `low` at once: so room is
    /// made for many insertions together, and free ranges can join before the pool is full.
    /// Both are bytes, `low ≤ high ≤` the limit of bytes. Default: none; evicted is only for
    /// what is to be inserted.
    pub fn watermarks(mut self, low: u64, high: u64) -> Self {
        self.watermarks = Some((low, high));
        self
    }

    /// Which blocks go first. Default: [`Eviction::Lru`].
    pub fn eviction(mut self, eviction: Eviction) -> Self {
        self.eviction = eviction;
        self
    }

    /// Into how many shards keys are divided, rounded up to a power of two; with 1 the LRU is that
    /// of the whole cache. Default: four for each processor and at least 16, but not so many
    /// that a limit of blocks leaves fewer than 64 in each.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Whether the policy is told of every use, also where one follows another and no block came or
    /// went in the shard between. Default: not, and of those only the first counts: it makes a
    /// difference where most of what a shard holds was used since, and costs every look-up that
    /// hits some nanoseconds, and threads that look up together more.
    pub fn exact_recency(mut self, exact: bool) -> Self {
        self.exact = exact;
        self
    }

    /// Seeds the function that spreads keys over shards. With the same seed, the same calls by one
    /// thread evict the same blocks in every process: for tests and measurements. Default: a
    /// random seed. Keys from outside can be chosen to collide where the seed is known.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// How a block of so many bytes is asked of the pool. Default: [`Pool::allocate`]. For blocks
    /// that are to be aligned, and for those who time or record what is asked.
    ///
    /// It is called once for each attempt: when it answers that there is no room, the cache evicts
    /// and asks again. It is called under no lock of the cache's, by the thread that inserts,
    /// and must not call the cache.
    pub fn with_allocator(
        mut self,
        allocate: impl Fn(&Pool, usize) -> Result<Block, PoolError> + Send + Sync + 'static,
    ) -> Self {
        self.source = Source::By(Arc::new(allocate));
        self
    }

    /// Who gets each value that is evicted, for room or by the watermarks: to keep it elsewhere.
    /// Default: nobody, and its bytes are free at once. What is removed, replaced or cleared is
    /// not given; but where there is no room beside the value that a key has already, that one is
    /// evicted first.
    ///
    /// It is called by the thread that inserts, trims or [evicts](KvCache::evict_to), under no lock
    /// of the cache's, and may call the cache for what does not evict. It should know the cache
    /// by a [`Weak`](std::sync::Weak) pointer: one that its own sink keeps never goes.
    ///
    /// The value counts for the cache no more. Its bytes are free when the pin is dropped, and
    /// until then the insertion goes on to evict others: so whoever keeps pins must bound them
    /// to a part of the pool, and drop or wait beyond that. An insertion fails with
    /// [`NothingToEvict`](super::KvCacheError::NothingToEvict) if it finds all there was in these
    /// hands.
    ///
    /// **A lower tier** that is asked for what is missed must never have an older value under a key
    /// than the latest. Until this returns the key is not [leased](KvCache::lease). Of several
    /// values of a key that threads hand over at once the latest may come first: ask
    /// [`is_superseded`](Pinned::is_superseded) under the lock under which values are taken, and do
    /// not take what is. What cannot be taken must leave nothing older behind. A sink that
    /// cannot see to that answers `Err`, or panics: from then on the key is not leased, until the
    /// cache is [cleared](KvCache::clear_with).
    pub fn on_evict<T: EvictionOutcome>(
        mut self,
        sink: impl Fn(Pinned<K>) -> T + Send + Sync + 'static,
    ) -> Self {
        self.sink = Some(Arc::new(move |pinned| sink(pinned).is_taken()));
        self
    }

    /// Makes the cache. It holds nothing yet and has asked the pool for nothing.
    ///
    /// # Errors
    /// [`KvCacheSetupError`] names what cannot be.
    pub fn build(&self) -> Result<KvCache<K>, KvCacheSetupError> {
        for (limit, of) in [(self.bytes, "bytes"), (self.blocks, "blocks")] {
            if limit == Some(0) {
                return Err(KvCacheSetupError::ZeroLimit { of });
            }
        }
        let blocks = self.blocks.unwrap_or(MOST_BLOCKS);
        if blocks > MOST_BLOCKS {
            return Err(KvCacheSetupError::TooManyBlocks { requested: blocks, limit: MOST_BLOCKS });
        }
        let bytes = self.bytes.unwrap_or(u64::MAX);
        let (low, high) = self.watermarks.unwrap_or((u64::MAX, u64::MAX));
        let limit = self.bytes.unwrap_or(self.pool.capacity());
        if self.watermarks.is_some() && !(low <= high && high <= limit) {
            return Err(KvCacheSetupError::Watermarks { low, high, limit });
        }
        let shards = match self.shards {
            Some(requested) if !(1..=MOST_SHARDS).contains(&requested) => {
                return Err(KvCacheSetupError::Shards { requested, limit: MOST_SHARDS });
            }
            Some(requested) => requested.next_power_of_two(),
            None => usual_shards(blocks),
        };
        let limits = Limits { bytes, blocks, high, low };
        let sink = self.sink.clone();
        Ok(KvCache::with_parts(
            self.pool.clone(),
            self.source.clone(),
            sink,
            limits,
            &self.eviction,
            Spread { shards, exact: self.exact, seed: self.seed },
        ))
    }
}

fn usual_shards(blocks: u64) -> usize {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let wished = (4 * threads).next_power_of_two().clamp(16, MOST_SHARDS);
    let sensible = (blocks / BLOCKS_IN_SHARD).max(1);
    // Down to a power of two.
    wished.min(1 << sensible.ilog2().min(MOST_SHARDS.ilog2()))
}

impl<K> fmt::Debug for KvCacheBuilder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCacheBuilder")
            .field("bytes", &self.bytes)
            .field("blocks", &self.blocks)
            .field("watermarks", &self.watermarks)
            .field("eviction", &self.eviction)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}

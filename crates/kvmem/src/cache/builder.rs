//! [`KvCacheBuilder`]: the settings of a cache.

use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::index::CacheLimits;
use super::source::Source;
use super::state::{Below, EvictionFn, EvictionSink, LowerTier, Spread};
use super::{Eviction, KvCache, KvCacheSetupError, Pinned};
use crate::pool::{Block, Pool, PoolError};
use crate::sync::processors;
use crate::tier::{Tier, TierKey};

/// Slots are 32 bits, and a policy uses some numbers for itself.
const MOST_BLOCKS: u64 = u32::MAX as u64 - 15;
const MOST_SHARDS: usize = 1 << 12;
/// With fewer blocks in a shard, the oldest of them says little about the oldest of all.
const BLOCKS_IN_SHARD: u64 = 64;
/// A batch of a disk keeps it busy; another one can begin meanwhile.
const FETCH_THREADS: usize = 2;

/// Settings of a cache. See [`KvCache::builder`].
#[must_use = "there is no cache before `build`"]
pub struct KvCacheBuilder<K> {
    pool: Pool,
    bytes: Option<u64>,
    blocks: Option<u64>,
    eviction: Eviction,
    shards: Option<usize>,
    exact: bool,
    seed: Option<u64>,
    source: Source,
    sink: EvictionSink<K>,
    /// The tier, and the sink that fills it.
    lower_tier: Option<(LowerTier<K>, Arc<EvictionFn<K>>)>,
    fetch_threads: usize,
    keys: PhantomData<fn() -> K>,
}

impl<K: Hash + Eq> KvCache<K> {
    /// Returns a cache with no limits but the pool's space, with [`Eviction::Lru`].
    #[must_use]
    pub fn new(pool: &Pool) -> Self {
        Self::builder(pool).build().expect("the usual settings contradict nothing")
    }

    /// Returns a builder of a cache on `pool`, which may have other users too.
    pub fn builder(pool: &Pool) -> KvCacheBuilder<K> {
        KvCacheBuilder::new(pool.clone())
    }
}

impl<K: Hash + Eq> KvCacheBuilder<K> {
    pub(super) fn new(pool: Pool) -> Self {
        let (eviction, source) = (Eviction::default(), Source::Pool);
        let keys = PhantomData;
        KvCacheBuilder {
            pool,
            bytes: None,
            blocks: None,
            eviction,
            shards: None,
            exact: false,
            seed: None,
            source,
            sink: None,
            lower_tier: None,
            fetch_threads: FETCH_THREADS,
            keys,
        }
    }

    /// Limits the bytes held, including those being written. Default: as many as fit in the
    /// pool.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Limits the blocks held, including those being written. Default: about 2^32.
    pub fn max_blocks(mut self, blocks: u64) -> Self {
        self.blocks = Some(blocks);
        self
    }

    /// Sets the eviction policy. Default: [`Eviction::Lru`].
    pub fn eviction(mut self, eviction: Eviction) -> Self {
        self.eviction = eviction;
        self
    }

    /// Sets the number of shards, rounded up to a power of two, for tests and measurements. With 1,
    /// the policy's order is exact over the whole cache. Default: four for each processor and at
    /// least 16, but no more than leave 64 blocks of a limit of blocks to each.
    #[doc(hidden)]
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Passes every use to the policy, also one that follows another while no block came or went in
    /// the shard, for tests and measurements. Default: off; of such uses only the first counts.
    #[doc(hidden)]
    pub fn exact_recency(mut self, exact: bool) -> Self {
        self.exact = exact;
        self
    }

    /// Seeds the hash function that spreads keys over shards, for tests and measurements: the same
    /// calls by one thread evict the same blocks in every process. Default: a random seed. If the
    /// seed is known, keys from outside can be chosen to collide.
    #[doc(hidden)]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the function that allocates a block of a requested length from the pool. Default:
    /// [`Pool::allocate`]. Use it to align blocks, or to time or record requests.
    ///
    /// The cache calls it once for each attempt: when it fails for lack of space, the cache evicts
    /// and calls it again. It runs under no lock of the cache, in the inserting thread, and
    /// must not call the cache.
    pub fn with_allocator(
        mut self,
        allocate: impl Fn(&Pool, usize) -> Result<Block, PoolError> + Send + Sync + 'static,
    ) -> Self {
        self.source = Source::By(Arc::new(allocate));
        self
    }

    /// Sets the callback that gets each evicted value. Default: none, and the bytes are free at
    /// once. Values that are removed, replaced or cleared
    /// are not passed on; but if there is no space for both it and the value that a key has
    /// already, that value is evicted first. Not with a [lower tier](Self::lower_tier).
    ///
    /// It runs in the thread that inserts or [evicts](KvCache::evict_to), under no lock of
    /// the cache, and may make calls that do not evict. It should refer to the cache by a
    /// [`Weak`](std::sync::Weak) pointer: a cache that its own callback keeps alive is never
    /// dropped.
    ///
    /// The value no longer counts for the cache. Its bytes are free when the pin is dropped; until
    /// then the insertion goes on to evict others. A callback that keeps pins must bound them to a
    /// part of the pool, and drop values or wait beyond that. If all values are held by such
    /// pins, an insertion fails with [`NothingToEvict`](super::KvCacheError::NothingToEvict).
    ///
    /// Storage for values that are looked up again is a [lower tier](Self::lower_tier): with one,
    /// no look-up finds an older value than the latest.
    pub fn on_evict(self, sink: impl Fn(Pinned<K>) + Send + Sync + 'static) -> Self {
        self.passing_to(move |pinned| {
            sink(pinned);
            true
        })
    }

    /// Sets the function that gets each evicted value and returns whether a tier now has the value,
    /// or nothing, under the key.
    pub(super) fn passing_to(
        mut self,
        sink: impl Fn(Pinned<K>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.sink = Some(Arc::new(sink));
        self
    }

    /// Attaches a lower tier, such as a disk: it gets each evicted value, and
    /// [`get`](KvCache::get) looks there for what the cache does not have. A value whose time to
    /// live has passed is removed there instead. Default: none. A cache with a tier has no
    /// [callback](Self::on_evict).
    ///
    /// The tier is called in the thread that inserts or [evicts](KvCache::evict_to), under
    /// no lock of the cache. A [`WriteBehind`](crate::tier::WriteBehind) around it writes from
    /// another thread.
    pub fn lower_tier(mut self, tier: Arc<dyn Tier>) -> Self
    where
        K: TierKey + Send + Sync + 'static,
    {
        let above = Arc::clone(&tier);
        let store = move |pinned: Pinned<K>| {
            let key = pinned.key().key_bytes();
            let value = pinned.for_tier(&key);
            if value.hints.ttl == Some(Duration::ZERO) {
                return above.remove(&[&key]).is_ok();
            }
            above.store(&[value]).pop().is_some_and(|outcome| outcome.is_ok())
        };
        let lower_tier = LowerTier { tier, key_bytes: K::key_bytes };
        self.lower_tier = Some((lower_tier, Arc::new(store)));
        self
    }

    /// Limits the threads that read from the [lower tier](Self::lower_tier) in the background, at
    /// least one. Each starts when a call [needs](KvCache::start_fetch) it. Default: 2.
    pub fn fetch_threads(mut self, threads: usize) -> Self {
        self.fetch_threads = threads.max(1);
        self
    }

    /// Builds the cache. It holds nothing yet and has requested nothing from the pool.
    ///
    /// # Errors
    /// [`KvCacheSetupError`] names the settings that contradict each other or exceed a limit.
    pub fn build(&self) -> Result<KvCache<K>, KvCacheSetupError> {
        if self.sink.is_some() && self.lower_tier.is_some() {
            return Err(KvCacheSetupError::TwoSinks);
        }
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
        let shards = match self.shards {
            Some(requested) if !(1..=MOST_SHARDS).contains(&requested) => {
                return Err(KvCacheSetupError::Shards { requested, limit: MOST_SHARDS });
            }
            Some(requested) => requested.next_power_of_two(),
            None => usual_shards(blocks, processors()),
        };
        let limits = CacheLimits { bytes, blocks };
        Ok(KvCache::with_parts(
            self.pool.clone(),
            self.source.clone(),
            self.below(),
            limits,
            &self.eviction,
            Spread { shards, exact: self.exact, seed: self.seed },
        ))
    }
}

impl<K> KvCacheBuilder<K> {
    fn below(&self) -> Below<K> {
        let (lower_tier, filled) = self.lower_tier.clone().unzip();
        let (sink, fetch_threads) = (filled.or_else(|| self.sink.clone()), self.fetch_threads);
        Below { sink, lower_tier, fetch_threads }
    }
}

/// Returns the usual number of shards of a cache.
fn usual_shards(blocks: u64, processors: usize) -> usize {
    let wished = (4 * processors).next_power_of_two().clamp(16, MOST_SHARDS);
    let sensible = (blocks / BLOCKS_IN_SHARD).max(1);
    // Down to a power of two.
    wished.min(1 << sensible.ilog2().min(MOST_SHARDS.ilog2()))
}

impl<K> fmt::Debug for KvCacheBuilder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCacheBuilder")
            .field("bytes", &self.bytes)
            .field("blocks", &self.blocks)
            .field("eviction", &self.eviction)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn there_are_four_shards_for_each_processor_and_enough_blocks_in_each() {
        let shards = [1, 4, 5, 48, 2000].map(|processors| usual_shards(MOST_BLOCKS, processors));
        assert_eq!(shards, [16, 16, 32, 256, MOST_SHARDS]);
        let blocks = [1, 127, 128, 64 * 16, 64 * 100, 64 * 10_000];
        assert_eq!(blocks.map(|blocks| usual_shards(blocks, 48)), [1, 1, 2, 16, 64, 256]);
    }
}

//! *Cache state*: what all clones of a cache share.

use std::mem;
use std::sync::Arc;

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;

use super::fetch_threads::FetchThreads;
use super::pending_fetches::PendingFetches;
use super::sink::{Below, EvictionSink, LowerTier};
use crate::cache::Eviction;
use crate::cache::index::{CacheLimits, Pinned, Shard, ShardState, StripeState, Usage};
use crate::cache::policy::{Across, Frontier};
use crate::cache::source::Source;
use crate::pool::Pool;
use crate::sync::StripedWriteGuard;
use crate::sys::Process;

/// The state that clones and reservations share.
pub(in crate::cache) struct CacheState<K> {
    pub(in crate::cache) shards: Box<[Shard<K>]>,
    pub(in crate::cache) hasher: SeedableRandomState,
    pub(in crate::cache) process: Process,
    pub(in crate::cache) pool: Pool,
    pub(super) source: Source,
    pub(super) sink: EvictionSink<K>,
    pub(in crate::cache) lower_tier: Option<LowerTier<K>>,
    pub(in crate::cache) eviction: Eviction,
    pub(super) across: Across,
    pub(super) frontier: Frontier,
    /// Whether an insertion may take over the block of its victim: no callback gets the victim, and
    /// neither the caller nor the pool acts on each block that is allocated.
    pub(super) recycles: bool,
    pub(in crate::cache) usage: Usage,
    /// Reads of the lower tier. Threads in the background share it.
    pub(in crate::cache) fetches: Arc<PendingFetches<K, Pinned<K>>>,
    pub(in crate::cache) fetch_threads: FetchThreads,
}

/// The distribution of keys over shards, and the counting of uses.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Spread {
    pub(in crate::cache) shards: usize,
    /// Whether all uses count.
    pub(in crate::cache) exact: bool,
    /// The seed of the hash function; `None`: a random seed.
    pub(in crate::cache) seed: Option<u64>,
}

impl<K> CacheState<K> {
    pub(in crate::cache) fn new(
        pool: Pool,
        source: Source,
        Below { sink, lower_tier, fetch_threads }: Below<K>,
        limits: CacheLimits,
        eviction: &Eviction,
        Spread { shards, exact, seed }: Spread,
    ) -> Self {
        let (across, usage) = (eviction.across(), Usage::new(limits));
        let compared = shards > 1 && !matches!(across, Across::RoundRobin);
        let shard = |_| Shard::new(eviction.make(&across), exact, compared, usage.clock.clone());
        let recycles = sink.is_none() && matches!(source, Source::Pool) && !pool.clears_bytes();
        CacheState {
            shards: (0..shards).map(shard).collect(),
            hasher: seed.map_or_else(SeedableRandomState::random, |seed| {
                SeedableRandomState::with_seed(seed, SharedSeed::global_fixed())
            }),
            across,
            frontier: Frontier::default(),
            recycles,
            process: Process::this(),
            pool,
            source,
            sink,
            lower_tier,
            eviction: eviction.clone(),
            usage,
            fetches: Arc::new(PendingFetches::new(fetch_threads)),
            fetch_threads: FetchThreads::default(),
        }
    }

    /// Locks the state of a shard for writing. Returns `None` in a forked child, where a thread
    /// that exists only in the parent may have the lock.
    pub(in crate::cache) fn state<'a>(
        &self,
        shard: &'a Shard<K>,
    ) -> Option<StripedWriteGuard<'a, ShardState<K>, StripeState>> {
        (!self.process.is_forked()).then(|| shard.state())
    }

    pub(super) fn place(&self, hash: u64) -> usize {
        // From the middle: the index of a shard uses the lowest bits and the highest.
        (hash >> 32) as usize & (self.shards.len() - 1)
    }

    #[inline]
    pub(in crate::cache) fn shard(&self, hash: u64) -> &Shard<K> {
        &self.shards[self.place(hash)]
    }

    /// Returns the number of commits so far. O(shards).
    pub(in crate::cache) fn commits(&self) -> u64 {
        self.shards.iter().map(|shard| shard.changes.insertions.get()).sum()
    }

    /// Starts to fetch what look-ups of these hashes read. Adjacent hashes of one shard take its
    /// lock once.
    pub(in crate::cache) fn prefetch(&self, hashes: &[u64]) {
        for hashes in hashes.chunk_by(|one, next| self.place(*one) == self.place(*next)) {
            self.shard(hashes[0]).prefetch(hashes);
        }
    }
}

impl<K> Drop for CacheState<K> {
    fn drop(&mut self) {
        if self.process.is_forked() {
            // A thread of the parent may have been changing these tables at the fork, and the other
            // fields belong to the parent.
            mem::forget(mem::take(&mut self.shards));
            mem::forget((
                self.pool.clone(),
                self.source.clone(),
                self.sink.clone(),
                self.lower_tier.clone(),
                self.eviction.clone(),
                Arc::clone(&self.fetches),
            ));
            self.fetch_threads.forget();
        } else {
            self.fetches.close();
            self.fetch_threads.join();
        }
    }
}

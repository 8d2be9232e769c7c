//! *Space*: the state that all clones of a cache share, and the search for space for a new block.

use std::borrow::Borrow;
use std::hash::Hash;
use std::mem;

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;

use super::sink::{EvictionSink, HandOverGuard};
use crate::offset::AllocError;
use crate::pool::kv_cache::index::{
    CacheLimits, Charged, Pinned, Shard, ShardState, StripeState, Usage,
};
use crate::pool::kv_cache::policy::{Across, Candidates, NONE, ORDERS, Rank};
use crate::pool::kv_cache::process::Process;
use crate::pool::kv_cache::source::Source;
use crate::pool::kv_cache::{Eviction, KvCacheError, Lease};
use crate::pool::{Block, Pool, PoolError};
use crate::sync::{AtomicBool, Ordering, StripedWriteGuard};

/// The state that clones and reservations share.
pub(in crate::pool::kv_cache) struct Inner<K> {
    pub(in crate::pool::kv_cache) shards: Box<[Shard<K>]>,
    pub(in crate::pool::kv_cache) hasher: SeedableRandomState,
    pub(in crate::pool::kv_cache) process: Process,
    pub(in crate::pool::kv_cache) pool: Pool,
    source: Source,
    sink: EvictionSink<K>,
    pub(in crate::pool::kv_cache) eviction: Eviction,
    across: Across,
    pub(in crate::pool::kv_cache) usage: Usage,
    /// Whether a thread is evicting down to the low watermark.
    trimming: AtomicBool,
}

/// The progress of an insertion in its search for a block to evict.
#[derive(Debug, Default)]
pub(in crate::pool::kv_cache) struct Turn {
    /// The shard that gives the next block.
    next: usize,
    /// Whether the search has already tried the value under the insertion's own key.
    begun: bool,
}

/// A shard, and the ranks that it had published.
type Seen = (usize, [Rank; ORDERS]);

/// The distribution of keys over shards, and the counting of uses.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool::kv_cache) struct Spread {
    pub(in crate::pool::kv_cache) shards: usize,
    /// Whether all uses count.
    pub(in crate::pool::kv_cache) exact: bool,
    /// The seed of the hash function; `None`: a random seed.
    pub(in crate::pool::kv_cache) seed: Option<u64>,
}

/// The shard that gives the next block, and the ranks that decided it.
#[derive(Debug)]
struct VictimShard {
    shard: usize,
    /// The ranks that the shard had published.
    ranks: [Rank; ORDERS],
    /// The worth of LRU's candidate among all shards, for a scan-resistant cache.
    other: Option<f32>,
}

/// Number of shards that an eviction compares; the next eviction compares the next ones.
const COMPARED: usize = 8;
/// After this many attempts the chosen shard evicts a block, whatever was used meanwhile.
const ATTEMPTS: usize = 8;

impl<K> Inner<K> {
    pub(in crate::pool::kv_cache) fn new(
        pool: Pool,
        source: Source,
        sink: EvictionSink<K>,
        limits: CacheLimits,
        eviction: &Eviction,
        Spread { shards, exact, seed }: Spread,
    ) -> Self {
        let (across, usage) = (eviction.across(), Usage::new(limits));
        let shard = |_| Shard::new(eviction.make(&across), exact, usage.commits.clone());
        Inner {
            shards: (0..shards).map(shard).collect(),
            hasher: seed.map_or_else(SeedableRandomState::random, |seed| {
                SeedableRandomState::with_seed(seed, SharedSeed::global_fixed())
            }),
            across,
            process: Process::this(),
            pool,
            source,
            sink,
            eviction: eviction.clone(),
            usage,
            trimming: AtomicBool::new(false),
        }
    }

    /// Locks the state of a shard for writing. Returns `None` in a forked child, where a thread
    /// that exists only in the parent may have the lock.
    pub(in crate::pool::kv_cache) fn state<'a>(
        &self,
        shard: &'a Shard<K>,
    ) -> Option<StripedWriteGuard<'a, ShardState<K>, StripeState>> {
        (!self.process.is_forked()).then(|| shard.state())
    }

    fn place(&self, hash: u64) -> usize {
        // From the middle: the index of a shard uses the lowest bits and the highest.
        (hash >> 32) as usize & (self.shards.len() - 1)
    }

    #[inline]
    pub(in crate::pool::kv_cache) fn shard(&self, hash: u64) -> &Shard<K> {
        &self.shards[self.place(hash)]
    }
}

impl<K: Hash + Eq> Inner<K> {
    /// Allocates and charges a block for a value of `len` bytes. Returns the block, and the number
    /// of bytes by which it is longer than the value.
    pub(in crate::pool::kv_cache) fn allocate_charged(
        &self,
        hash: u64,
        key: &K,
        len: usize,
    ) -> Result<(Block, u32), KvCacheError> {
        let requested = len as u64;
        if requested == 0 {
            return Err(KvCacheError::Empty);
        }
        let limit = self.usage.limits.bytes;
        if requested > limit {
            return Err(KvCacheError::TooLarge { requested, limit });
        }
        let mut turn = Turn { next: self.place(hash), begun: false };
        let own = Some((hash, key));
        // The pool comes first: it detects at once a request that can never succeed.
        let block = self.until(&mut turn, own, requested, || {
            match self.source.allocate(&self.pool, len) {
                Ok(block) => Ok(Some(block)),
                Err(PoolError::Allocate(
                    AllocError::OutOfSpace { .. } | AllocError::TooManyRanges { .. },
                )) => Ok(None),
                Err(PoolError::Allocate(AllocError::TooLarge { requested, limit })) => {
                    Err(KvCacheError::TooLarge { requested, limit })
                }
                Err(error) => Err(KvCacheError::Pool(error)),
            }
        })?;
        // The block's own length is charged now and credited later.
        let got = block.len() as u64;
        let padding = got.checked_sub(requested).and_then(|more| u32::try_from(more).ok());
        let Some(padding) = padding.filter(|_| got <= limit) else {
            let limit = limit.min(requested.saturating_add(u64::from(u32::MAX)));
            return Err(KvCacheError::WrongLength { requested, returned: got, limit });
        };
        self.until(&mut turn, own, got, || Ok(self.usage.charge(got).then_some(())))?;
        Ok((block, padding))
    }

    /// Attempts and evicts in turn, until an attempt succeeds or no block can be evicted.
    fn until<T>(
        &self,
        turn: &mut Turn,
        own: Option<(u64, &K)>,
        requested: u64,
        mut attempt: impl FnMut() -> Result<Option<T>, KvCacheError>,
    ) -> Result<T, KvCacheError> {
        loop {
            if let Some(done) = attempt()? {
                return Ok(done);
            }
            // The attempt ran the caller's code, which may have forked.
            if self.process.is_forked() {
                return Err(KvCacheError::Forked);
            }
            let commits = self.usage.commits.now();
            if self.evict(turn, own) {
                continue;
            }
            // Blocks that other threads evicted while this search passed their shards are free by
            // now, since they are freed under the locks of those shards.
            if let Some(done) = attempt()? {
                return Ok(done);
            }
            // Blocks that other threads allocated and committed behind this search can be evicted.
            if self.usage.commits.now() == commits {
                self.usage.count_failure();
                let (blocks, bytes) = (self.usage.blocks(), self.usage.bytes());
                return Err(KvCacheError::NothingToEvict { requested, blocks, bytes });
            }
        }
    }

    /// Removes the value under `key` and returns it.
    pub(in crate::pool::kv_cache) fn take_out<Q: Hash + Eq + ?Sized>(
        &self,
        shard: &Shard<K>,
        state: &mut ShardState<K>,
        hash: u64,
        key: &Q,
    ) -> Option<Pinned<K>>
    where
        K: Borrow<Q>,
    {
        let (slot, charged) = state.remove(hash, key, &self.usage)?;
        shard.others.removals.more();
        state.inform_removed(slot);
        shard.publish(state);
        Some(Pinned(charged.uncharged()))
    }

    /// Removes all values of a shard.
    pub(in crate::pool::kv_cache) fn empty(&self, shard: &Shard<K>, state: &mut ShardState<K>) {
        let (slots, all) = state.drain(&self.usage);
        slots.iter().for_each(|_| shard.others.removals.more());
        slots.into_iter().for_each(|slot| state.inform_removed(slot));
        shard.publish(state);
        // The blocks are freed under the lock of the shard; see `evicted`.
        drop(all);
    }

    /// Evicts one block. It tries the block under the insertion's own key, then the best victim of
    /// several shards, then a block of each shard in turn. Returns false if a whole round over the
    /// shards found no block that can be evicted.
    pub(in crate::pool::kv_cache) fn evict(&self, turn: &mut Turn, own: Option<(u64, &K)>) -> bool {
        if let Some((hash, key)) = own.filter(|_| !turn.begun) {
            turn.begun = true;
            let shard = self.shard(hash);
            let Some(mut state) = self.state(shard) else { return false };
            if let Some((slot, charged)) = state.remove_unpinned(hash, key, &self.usage) {
                shard.others.evictions.more();
                state.inform_removed(slot);
                self.evicted(shard, state, charged);
                return true;
            }
        }
        for attempt in 1..=ATTEMPTS {
            let Some(choice) = self.choose(turn) else { break };
            let shard = &self.shards[choice.shard];
            let Some(mut state) = self.state(shard) else { return false };
            // A use meanwhile, or one that the policy learned of only now, may have made a block of
            // another shard the victim.
            if attempt < ATTEMPTS && shard.oldest.ranks() != choice.ranks {
                continue;
            }
            let Some(charged) = state.evict(choice.other, &self.usage) else { break };
            shard.others.evictions.more();
            self.evicted(shard, state, charged);
            return true;
        }
        for _ in 0..self.shards.len() {
            let shard = &self.shards[turn.next & (self.shards.len() - 1)];
            turn.next = turn.next.wrapping_add(1);
            let Some(mut state) = self.state(shard) else { return false };
            if let Some(charged) = state.evict(None, &self.usage) {
                shard.others.evictions.more();
                self.evicted(shard, state, charged);
                return true;
            }
        }
        false
    }

    /// Chooses the shard that gives the next block, of the [`COMPARED`] next ones. Returns `None`
    /// if there is nothing to compare.
    fn choose(&self, turn: &mut Turn) -> Option<VictimShard> {
        let mask = self.shards.len() - 1;
        let looked_at = self.shards.len().min(COMPARED);
        let first = turn.next;
        if mask >= COMPARED {
            turn.next = first.wrapping_add(COMPARED);
        }
        let all = (0..looked_at).map(|further| first.wrapping_add(further) & mask);
        match &self.across {
            _ if mask == 0 => None,
            Across::Turns => None,
            Across::Age => {
                let aged = all.map(|shard| (shard, self.shards[shard].oldest.ranks()));
                let (shard, ranks) =
                    aged.filter(|(_, ranks)| ranks[0] != NONE).min_by_key(|(_, ranks)| ranks[0])?;
                Some(VictimShard { shard, ranks, other: None })
            }
            Across::Worth(reuse) => {
                let now = self.usage.commits.now();
                let mut best: Option<(Candidates, [Seen; 2])> = None;
                for shard in all {
                    let ranks = self.shards[shard].oldest.ranks();
                    let Some(found) = Candidates::of(reuse, now, ranks) else { continue };
                    best = Some(match best {
                        None => (found, [(shard, ranks); 2]),
                        Some((so_far, mut at)) => {
                            let both = so_far.and(found);
                            if both.oldest != so_far.oldest {
                                at[0] = (shard, ranks);
                            }
                            if both.least != so_far.least {
                                at[1] = (shard, ranks);
                            }
                            (both, at)
                        }
                    });
                }
                let (candidates, [oldest, least]) = best?;
                let choice = candidates.trusted_choice(reuse, None);
                let (shard, ranks) = if choice == candidates.oldest { oldest } else { least };
                Some(VictimShard { shard, ranks, other: Some(candidates.oldest.worth) })
            }
        }
    }

    /// Inserts a charged block. Returns false in a forked child, which drops the block.
    pub(in crate::pool::kv_cache) fn commit(&self, hash: u64, charged: Charged<'_, K>) -> bool {
        let shard = self.shard(hash);
        let Some(state) = self.state(shard) else { return false };
        self.put(shard, state, hash, charged);
        true
    }

    /// Inserts a charged block if the lease is valid; otherwise returns the block and the value
    /// that the key has. The lease ends.
    #[allow(clippy::type_complexity)]
    pub(in crate::pool::kv_cache) fn commit_leased<'a>(
        &'a self,
        hash: u64,
        charged: Charged<'a, K>,
        lease: Lease<K>,
    ) -> Result<(), (Charged<'a, K>, Option<Pinned<K>>)> {
        let shard = self.shard(hash);
        let Some(mut state) = self.state(shard) else { return Err((charged, None)) };
        let redeemed = state.redeem(hash, &charged.held().key, lease.number());
        lease.end();
        match redeemed {
            Ok(()) => {
                self.put(shard, state, hash, charged);
                Ok(())
            }
            Err(there) => {
                shard.others.superseded.more();
                Err((charged, there.map(Pinned)))
            }
        }
    }

    /// Inserts a charged block and replaces the one under the same key, if any.
    fn put<'a>(
        &'a self,
        shard: &Shard<K>,
        mut state: StripedWriteGuard<'_, ShardState<K>, StripeState>,
        hash: u64,
        charged: Charged<'a, K>,
    ) {
        let depth = charged.held().depth();
        let (slot, old) = state.place(hash, charged, &self.usage);
        shard.others.insertions.more();
        if old.is_some() {
            shard.others.replacements.more();
        }
        self.usage.commits.tick();
        state.inform_placed(slot, hash, depth, old.is_some());
        shard.publish(&mut state);
        // The old block is freed under the lock of the shard; see `evicted`.
        drop(old);
        drop(state);
        if self.usage.bytes() > self.usage.limits.high {
            self.trim(self.place(hash));
        }
    }

    /// Evicts down to the low watermark, unless another thread is doing so.
    #[cold]
    fn trim(&self, from: usize) {
        // Acquire pairs with the Release in `Trimming`: one thread trims at a time.
        if self.trimming.swap(true, Ordering::Acquire) {
            return;
        }
        let _trimming = Trimming(&self.trimming);
        let mut turn = Turn { next: from, begun: true };
        while self.usage.bytes() > self.usage.limits.low && self.evict(&mut turn, None) {}
    }

    /// Frees an evicted block, or passes it to the eviction sink. Without a sink the block is freed
    /// under the lock of its shard: a thread that takes the lock afterwards finds the bytes free,
    /// unless they are pinned. A sink is called without the lock, and the key is not leased until
    /// the sink has returned.
    fn evicted(
        &self,
        shard: &Shard<K>,
        mut state: StripedWriteGuard<'_, ShardState<K>, StripeState>,
        charged: Charged<'_, K>,
    ) {
        shard.publish(&mut state);
        let Some(sink) = &self.sink else { return drop(charged) };
        let number = state.hand_over(charged.held());
        let held = charged.uncharged();
        drop(state);
        let mut in_flight = HandOverGuard::new(self, shard, number);
        in_flight.taken = sink(Pinned(held));
    }
}

impl<K> Drop for Inner<K> {
    fn drop(&mut self) {
        if self.process.is_forked() {
            // A thread of the parent may have been changing these tables at the fork, and the other
            // fields belong to the parent.
            mem::forget(mem::take(&mut self.shards));
            mem::forget((
                self.pool.clone(),
                self.source.clone(),
                self.sink.clone(),
                self.eviction.clone(),
            ));
        }
    }
}

/// Lets other threads trim again when it is dropped, also after a panic of a policy.
struct Trimming<'a>(&'a AtomicBool);

impl Drop for Trimming<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `trim`.
        self.0.store(false, Ordering::Release);
    }
}

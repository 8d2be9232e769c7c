//! *Space*: the search for space for a new block.

use std::hash::Hash;
use std::sync::Arc;

use super::cache_state::CacheState;
use super::victim::{Evicted, VictimSearch};
use crate::cache::KvCacheError;
use crate::cache::index::{CacheEntry, Charged, ValueSpace};
use crate::offset::AllocError;
use crate::pool::PoolError;

impl<K: Hash + Eq> CacheState<K> {
    /// Returns charged space for a value of `len` bytes under `key`: an allocated block, or the
    /// block of a victim that is as long. A cache at its limit evicts first, and does not request
    /// what it would have to free at once.
    pub(in crate::cache) fn allocate_charged(
        &self,
        hash: u64,
        key: K,
        len: usize,
    ) -> Result<ValueSpace<'_, K>, KvCacheError> {
        let requested = len as u64;
        if requested == 0 {
            return Err(KvCacheError::Empty);
        }
        let limit = self.usage.limits.bytes;
        if requested > limit {
            return Err(KvCacheError::TooLarge { requested, limit });
        }
        let mut search = VictimSearch { next: self.place(hash), ..VictimSearch::default() };
        let own = Some((hash, &key));
        if self.recycles {
            search.wanted = requested;
            // Nothing is evicted for a request that can never succeed.
            if self.usage.is_full(requested)
                && requested <= self.pool.limit_hint()
                && let Some(Evicted::Recycled(space)) = self.evict(&mut search, own)
            {
                return Ok(ValueSpace::recycled(space, key));
            }
        }
        // The pool comes first: it detects at once a request that can never succeed.
        let block = self.until(&mut search, own, requested, || {
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
        let block = match block {
            Space::Found(block) => block,
            Space::Recycled(space) => return Ok(ValueSpace::recycled(space, key)),
        };
        // The block's own length is charged now and credited later.
        let got = block.len() as u64;
        let padding = got.checked_sub(requested).and_then(|more| u32::try_from(more).ok());
        let Some(padding) = padding.filter(|_| got <= limit) else {
            let limit = limit.min(requested.saturating_add(u64::from(u32::MAX)));
            return Err(KvCacheError::WrongLength { requested, returned: got, limit });
        };
        search.wanted = 0;
        self.until(&mut search, own, got, || Ok(self.usage.charge(got).then_some(())))?;
        let held = Arc::new(CacheEntry::new(key, block, padding));
        Ok(ValueSpace::new(Charged::taken(held, &self.usage)))
    }

    /// Attempts and evicts alternately, until an attempt succeeds, a victim has the wanted length,
    /// or no block can be evicted.
    fn until<T>(
        &self,
        search: &mut VictimSearch,
        own: Option<(u64, &K)>,
        requested: u64,
        mut attempt: impl FnMut() -> Result<Option<T>, KvCacheError>,
    ) -> Result<Space<'_, T, K>, KvCacheError> {
        let mut released = 0;
        loop {
            if let Some(done) = attempt()? {
                return Ok(Space::Found(done));
            }
            // The attempt ran the caller's code, which may have forked.
            if self.process.is_forked() {
                return Err(KvCacheError::Forked);
            }
            match self.evict(search, own) {
                Some(Evicted::Recycled(charged)) => return Ok(Space::Recycled(charged)),
                Some(Evicted::Freed) => continue,
                None => {}
            }
            // Blocks that other threads evicted while this search passed their shards are free by
            // now, since they are freed under the locks of those shards.
            if let Some(done) = attempt()? {
                return Ok(Space::Found(done));
            }
            // Blocks that other threads committed behind this search can be evicted.
            if self.commits() == search.commits {
                // Values that a lower tier still writes occupy the pool, and will not for long.
                if let Some(times) = self.waited_for_release(released) {
                    released = times;
                    continue;
                }
                self.usage.count_failure();
                let (blocks, bytes) = (self.usage.blocks(), self.usage.bytes());
                return Err(KvCacheError::NothingToEvict { requested, blocks, bytes });
            }
        }
    }

    /// Waits for a lower tier that keeps values pinned; see `Tier::wait_for_release`.
    #[cold]
    pub(in crate::cache) fn waited_for_release(&self, seen: u64) -> Option<u64> {
        self.lower_tier.as_ref()?.tier.wait_for_release(seen)
    }
}

/// The result of a search for space.
enum Space<'a, T, K> {
    Found(T),
    /// The block of a victim, still charged.
    Recycled(Charged<'a, K>),
}

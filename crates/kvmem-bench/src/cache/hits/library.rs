//! *Library*: a cache of the library, with one byte for each block.

use kvmem::arena::PageSize;
use kvmem::pool::kv_cache::{Eviction, KvCacheError};
use kvmem::pool::{KvCache, Pool};

use super::model::Model;
use super::{MeasureError, PolicyId};

/// Spreads keys over shards in the same way in each run.
const SEED: u64 = 1;
/// Bytes of the pool for each block, and for all together.
const BYTES: (usize, usize) = (64, 1 << 20);

pub(super) struct Library(KvCache<u32>);

impl Library {
    pub(super) fn new(policy: PolicyId, shards: u32, blocks: u64) -> Result<Library, MeasureError> {
        let (pool, _) =
            Pool::builder(blocks as usize * BYTES.0 + BYTES.1).ladder(PageSize::Base).build()?;
        let eviction =
            if policy == PolicyId::ScanResistant { Eviction::ScanResistant } else { Eviction::Lru };
        let builder = KvCache::builder(&pool).eviction(eviction).max_blocks(blocks);
        Ok(Library(builder.shards(shards as usize).exact_recency(true).seed(SEED).build()?))
    }
}

impl Model for Library {
    /// As the replay of a trace serves a request: what is found is pinned, what is not is put in
    /// from the last block on, and then what was found is used once more, from the last block
    /// on. So no block is older than one behind it.
    fn request(&mut self, chain: &[u32]) -> Result<u64, MeasureError> {
        let cache = &self.0;
        let found = chain.iter().take_while(|block| cache.contains(*block)).count();
        let mut pins: Vec<_> = chain[..found].iter().rev().map(|block| cache.get(block)).collect();
        let mut rooms = Vec::new();
        for &block in &chain[found..] {
            if let Some(pin) = cache.get(&block) {
                pins.push(Some(pin));
                continue;
            }
            match cache.reserve(block, 1) {
                Ok(room) => rooms.push(room),
                Err(KvCacheError::NothingToEvict { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if !rooms.is_empty() {
            rooms.into_iter().rev().for_each(|room| drop(room.commit()));
            chain[..found].iter().rev().for_each(|block| drop(cache.get(block)));
        }
        Ok(found as u64)
    }
}

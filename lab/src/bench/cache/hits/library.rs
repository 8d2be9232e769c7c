//! A cache of the library, with one byte for each block.

use anyhow::Result;
use kvmem::arena::PageSize;
use kvmem::cache::KvCache;
use kvmem::cache::{Eviction, KvCacheError};
use kvmem::pool::Pool;

use super::model::Model;

/// Makes the assignment of keys to shards the same in each run.
const SEED: u64 = 1;
/// Bytes of the pool for each block, and in addition for all blocks.
const BYTES: (usize, usize) = (64, 1 << 20);

pub(super) struct Library(KvCache<u32>);

impl Library {
    pub(super) fn new(scan_resistant: bool, shards: usize, blocks: u64) -> Result<Library> {
        let pool =
            Pool::builder(blocks as usize * BYTES.0 + BYTES.1).ladder(PageSize::Base).build()?;
        let eviction = if scan_resistant { Eviction::ScanResistant } else { Eviction::Lru };
        let builder = KvCache::builder(&pool).eviction(eviction).max_blocks(blocks);
        Ok(Library(builder.shards(shards).exact_recency(true).seed(SEED).build()?))
    }
}

impl Model for Library {
    /// Serves a request as the replay of a trace does. The blocks found are pinned. The others are
    /// inserted, starting with the last block. Then the blocks found are used once more, starting
    /// with the last. No block is therefore older than a block behind it in the chain.
    fn request(&mut self, chain: &[u32]) -> Result<u64> {
        let cache = &self.0;
        let found = chain.iter().take_while(|block| cache.contains(*block)).count();
        let mut pins: Vec<_> = chain[..found].iter().rev().map(|block| cache.get(block)).collect();
        let mut reservations = Vec::new();
        for &block in &chain[found..] {
            if let Some(pin) = cache.get(&block) {
                pins.push(Some(pin));
                continue;
            }
            match cache.reserve(block, 1) {
                Ok(reservation) => reservations.push(reservation),
                Err(KvCacheError::NothingToEvict { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if !reservations.is_empty() {
            reservations.into_iter().rev().for_each(|reservation| drop(reservation.commit()));
            chain[..found].iter().rev().for_each(|block| drop(cache.get(block)));
        }
        Ok(found as u64)
    }
}

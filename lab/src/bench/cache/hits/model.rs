//! The interface of a policy: requests and single blocks.

use anyhow::Result;

/// A set of blocks with an eviction policy.
pub(super) trait Model {
    /// Serves a request: returns how many blocks of the chain are found, starting with the first,
    /// and uses the whole chain.
    fn request(&mut self, chain: &[u32]) -> Result<u64>;
}

/// An eviction policy of single blocks, with one order for all.
pub(super) trait Blocks {
    /// Returns whether a block is cached.
    fn holds(&self, block: u32) -> bool;

    /// Uses a block; inserts it if it is not cached.
    fn access(&mut self, block: u32);
}

impl<B: Blocks> Model for B {
    fn request(&mut self, chain: &[u32]) -> Result<u64> {
        let found = chain.iter().take_while(|&&block| self.holds(block)).count() as u64;
        // Starting with the last, so no block is older than a block behind it.
        chain.iter().rev().for_each(|&block| self.access(block));
        Ok(found)
    }
}

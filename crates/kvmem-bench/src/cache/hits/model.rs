//! *Model*: what can be asked for the blocks of a request.

use super::MeasureError;

/// Some blocks, and a way to choose which of them go.
pub(super) trait Model {
    /// Serves a request: returns how many blocks of the chain are found, from the first on, and has
    /// all of it used.
    fn request(&mut self, chain: &[u32]) -> Result<u64, MeasureError>;
}

/// A policy of blocks one by one, with one order of all.
pub(super) trait Blocks {
    /// Whether a block is held.
    fn holds(&self, block: u32) -> bool;

    /// Uses a block, which comes in if it is not held.
    fn access(&mut self, block: u32);
}

impl<B: Blocks> Model for B {
    fn request(&mut self, chain: &[u32]) -> Result<u64, MeasureError> {
        let found = chain.iter().take_while(|&&block| self.holds(block)).count() as u64;
        // From the last on: so no block is older than one behind it.
        chain.iter().rev().for_each(|&block| self.access(block));
        Ok(found)
    }
}

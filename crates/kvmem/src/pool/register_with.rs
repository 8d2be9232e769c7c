//! *Further registrars*: registers a pool's memory with devices that its builder did not name.

use super::{Pool, PoolError};
use crate::register::{RegistrationBuilder, RegistrationSet};

impl Pool {
    /// Registers the memory of the pool, as long as it is now, with the registrars of `with`,
    /// in addition to those that the pool was built with. Returns a set for each part of the pool;
    /// the memory stays mapped until the sets are dropped.
    ///
    /// [`Block::key`](super::Block::key) and [`devices`](Self::devices) do not know these
    /// registrars: the caller looks for keys in the sets. Parts by which the pool
    /// [grows](Self::grow_to) later are in no set. While a set exists, [shrinking](Self::shrink_to)
    /// the pool below the end of its part fails to return the pages to the kernel.
    ///
    /// # Errors
    /// [`PoolError::Initializing`]; the errors of [`RegistrationBuilder::register_batch`]. Nothing
    /// is registered then.
    pub fn register_with(
        &self,
        with: &RegistrationBuilder,
    ) -> Result<Vec<RegistrationSet>, PoolError> {
        let _alone = self.owner().resizing();
        if self.is_initializing() {
            return Err(PoolError::Initializing);
        }
        let parts = self.memory.parts_in(0..self.capacity() as usize);
        Ok(with.register_batch(parts.iter().map(|part| part.region.clone()))?)
    }
}

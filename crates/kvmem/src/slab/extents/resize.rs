//! *Resize*: cached ranges are in the way of a new capacity, and the bound of cached bytes follows
//! it.

use crate::offset::SpaceError;

use super::cache::{ExtentCache, default_bound};

impl ExtentCache {
    /// Extends the space to `new_capacity` bytes; see
    /// [`grow_to`](crate::offset::OffsetAllocator::grow_to).
    ///
    /// # Errors
    /// Returns the errors of [`grow_to`](crate::offset::OffsetAllocator::grow_to).
    pub fn grow_to(&self, new_capacity: u64) -> Result<(), SpaceError> {
        match self.allocator().grow_to(new_capacity) {
            // Cached ranges occupy metadata nodes.
            Err(SpaceError::TooManyRanges { .. }) => {
                self.instance.magazines.reclaim(|| self.allocator().grow_to(new_capacity))?;
            }
            result => result?,
        }
        self.follow_bound();
        Ok(())
    }

    /// Shrinks the space to `new_capacity` bytes after reclaiming the cached ranges; see
    /// [`shrink_to`](crate::offset::OffsetAllocator::shrink_to).
    ///
    /// # Errors
    /// Returns the errors of [`shrink_to`](crate::offset::OffsetAllocator::shrink_to).
    pub fn shrink_to(&self, new_capacity: u64) -> Result<(), SpaceError> {
        self.instance.magazines.reclaim(|| self.allocator().shrink_to(new_capacity))?;
        self.follow_bound();
        Ok(())
    }

    fn follow_bound(&self) {
        if self.owner.bound_follows {
            self.instance.follow_bound(|| default_bound(self.capacity()));
        }
    }
}

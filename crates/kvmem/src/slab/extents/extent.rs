//! *Extent*: one allocated range, which returns to the cache when it is dropped.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops;

use crate::offset::{AllocError, Allocation, Range, SpaceHandle};

use super::instance::ExtentInstance;

/// An allocated range `[offset, offset + size)` of a space with an
/// [`ExtentCache`](super::ExtentCache). Dropping it puts the range into the thread's magazines if
/// its size is hot, and frees it otherwise.
///
/// An extent has 20 bytes, is move-only, `Send` and `Sync`, and may outlive its cache.
///
/// ```
/// use kvmem::slab::ExtentCache;
///
/// let space = ExtentCache::new(1 << 30)?;
/// let a = space.allocate(3_274_752)?;
/// assert_eq!((a.len(), a.range()), (3_274_752, a.offset()..a.offset() + 3_274_752));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping an extent frees it"]
pub struct Extent(ManuallyDrop<Allocation>);

impl Extent {
    #[inline(always)]
    pub(super) fn new(allocation: Allocation) -> Self {
        Extent(ManuallyDrop::new(allocation))
    }

    #[inline(always)]
    pub(super) fn of(space: SpaceHandle, range: Range) -> Self {
        Self::new(space.allocation(range))
    }

    /// Returns the offset of the range in bytes.
    #[inline]
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.0.offset()
    }

    /// Returns the length of the range in bytes, exactly as requested. O(1); a length of 4 GiB − 1
    /// B or more is read under the lock of the metadata.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // An extent is never empty.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns `offset()..offset() + size()`.
    #[must_use]
    pub fn range(&self) -> ops::Range<u64> {
        self.0.range()
    }

    /// Shortens the range to `new_size` bytes; see [`Allocation::shrink`].
    ///
    /// # Errors
    /// Returns the errors of [`Allocation::shrink`].
    pub fn shrink(&mut self, new_size: u64) -> Result<(), AllocError> {
        let instance = self.instance();
        instance.before_shrink(&self.0, new_size);
        instance.with_reclaim(|| self.0.shrink(new_size))
    }

    /// Extends the range to `new_size` bytes; see [`Allocation::extend`]. If the following range is
    /// cached, it is reclaimed first.
    ///
    /// # Errors
    /// Returns the errors of [`Allocation::extend`].
    pub fn extend(&mut self, new_size: u64) -> Result<(), AllocError> {
        self.instance().extend(&mut self.0, new_size)
    }

    /// Frees a part of the range and returns the parts before and after it; see
    /// [`Allocation::free_range`]. The freed part is not cached.
    ///
    /// # Errors
    /// Returns the unchanged extent with an error of [`Allocation::free_range`].
    pub fn free_range(
        self,
        sub: ops::Range<u64>,
    ) -> Result<(Option<Extent>, Option<Extent>), (Extent, AllocError)> {
        let instance = self.instance();
        instance.before_cut(&self.0, sub.clone());
        let parts = match self.into_allocation().free_range(sub.clone()) {
            // Cached ranges occupy metadata nodes.
            Err((whole, AllocError::TooManyRanges { .. })) => {
                instance.magazines.reclaim(|| whole.free_range(sub))
            }
            parts => parts,
        };
        let (left, right) = parts.map_err(|(whole, error)| (Extent::new(whole), error))?;
        Ok((left.map(Extent::new), right.map(Extent::new)))
    }

    /// Converts the extent into an allocation, which is freed without being cached when it is
    /// dropped. For ranges whose size will not be requested again.
    #[must_use = "dropping the allocation frees its range"]
    pub fn into_allocation(self) -> Allocation {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again, and its drop does not run.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }

    /// Returns the number of the extent's space; see [`ExtentCache`](super::ExtentCache).
    #[inline]
    pub(crate) fn space(&self) -> u32 {
        self.0.core_index()
    }

    pub(super) fn allocation(&self) -> &Allocation {
        &self.0
    }

    #[inline(always)]
    pub(super) fn instance(&self) -> &'static ExtentInstance {
        // SAFETY: only a cache makes extents, and a cache has opened the instance.
        unsafe { ExtentInstance::known(self.0.core_index()) }
    }
}

impl Drop for Extent {
    #[inline]
    fn drop(&mut self) {
        // One value, read before anything is made of it: see `Range`.
        let range = self.0.as_range();
        self.instance().free(range);
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extent").field("offset", &self.offset()).field("size", &self.len()).finish()
    }
}

//! *Extent*: one granted range, put back into the cache when dropped.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops;

use crate::offset::{AllocError, Allocation, Ground, Range};

use super::instance::ExtentInstance;

/// A granted range `[offset, offset + size)` of a space with an
/// [`ExtentCache`](super::ExtentCache). Dropping it gives the range to the thread's magazines if
/// its size is hot, and else frees it.
///
/// 20 bytes, move-only, `Send` and `Sync`. It may outlive the cache it came from.
///
/// ```
/// use kvmem::slab::ExtentCache;
///
/// let space = ExtentCache::new(1 << 30)?;
/// let a = space.allocate(3_274_752)?;
/// assert_eq!((a.size(), a.range()), (3_274_752, a.offset()..a.offset() + 3_274_752));
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
    pub(super) fn of(ground: Ground, range: Range) -> Self {
        Self::new(ground.allocation(range))
    }

    /// Where the range begins, in bytes.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.0.offset()
    }

    /// Length of the range in bytes: exactly what was asked for. O(1); from 4 GiB − 1 B up it takes
    /// the lock of the books.
    #[inline]
    pub fn size(&self) -> u64 {
        self.0.size()
    }

    /// `offset()..offset() + size()`.
    pub fn range(&self) -> ops::Range<u64> {
        self.0.range()
    }

    /// As [`Allocation::shrink`].
    ///
    /// # Errors
    /// As there.
    pub fn shrink(&mut self, new_size: u64) -> Result<(), AllocError> {
        self.instance().with_reclaim(|| self.0.shrink(new_size))
    }

    /// As [`Allocation::extend`]; if what lies behind is cached, it is taken back first.
    ///
    /// # Errors
    /// As there.
    pub fn extend(&mut self, new_size: u64) -> Result<(), AllocError> {
        self.instance().with_reclaim(|| self.0.extend(new_size))
    }

    /// As [`Allocation::free_range`]: the part goes to the books, whatever its size.
    ///
    /// # Errors
    /// As there; the extent comes back unharmed.
    pub fn free_range(
        self,
        sub: ops::Range<u64>,
    ) -> Result<(Option<Extent>, Option<Extent>), (Extent, AllocError)> {
        let instance = self.instance();
        let parts = match self.into_allocation().free_range(sub.clone()) {
            // Cached ranges stand on the books.
            Err((whole, AllocError::TooManyRanges { .. })) => {
                instance.magazines.reclaim(|| whole.free_range(sub))
            }
            parts => parts,
        };
        let (left, right) = parts.map_err(|(whole, error)| (Extent::new(whole), error))?;
        Ok((left.map(Extent::new), right.map(Extent::new)))
    }

    /// The same range as an allocation that is freed in the books when dropped: for those that will
    /// not come again.
    pub fn into_allocation(self) -> Allocation {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again, and its drop does not run.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }

    /// The number of its space; see [`ExtentCache`](super::ExtentCache).
    #[inline]
    pub(crate) fn space(&self) -> u32 {
        self.0.core_index()
    }

    pub(super) fn allocation(&self) -> &Allocation {
        &self.0
    }

    #[inline(always)]
    fn instance(&self) -> &'static ExtentInstance {
        // SAFETY: an extent is made by a cache, which has opened the instance.
        unsafe { ExtentInstance::known(self.0.core_index()) }
    }
}

impl Drop for Extent {
    #[inline]
    fn drop(&mut self) {
        // Of one piece, and read before anything is made of it: see `Range`.
        let range = self.0.as_range();
        // From 4 GiB − 1 B up no size is hot.
        match self.instance().class_of(self.0.as_range().size()) {
            Some(class) => self.instance().magazines.put(class, range),
            // SAFETY: it is not used again.
            None => free(unsafe { ManuallyDrop::take(&mut self.0) }),
        }
    }
}

/// Out of the way of those that are cached.
#[inline(never)]
fn free(allocation: Allocation) {
    drop(allocation);
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extent")
            .field("offset", &self.offset())
            .field("size", &self.size())
            .finish()
    }
}

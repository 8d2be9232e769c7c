//! *Views*: the bytes of a region, by address or as slices that borrow the region.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};
use std::ptr::NonNull;
use std::slice;

use super::backing::Backing;
use super::region::Region;
use crate::arena::ArenaError;

/// A range of a region's memory as address and length. It cannot outlive the region, and does not
/// prevent other code from reading or writing the bytes. Like the owner of a pointer, its holder is
/// responsible for each access.
#[derive(Clone, Copy)]
pub struct RegionSlice<'a> {
    at: NonNull<u8>,
    len: usize,
    region: PhantomData<&'a Region>,
}

// SAFETY: a slice is an address and a length, and reads no byte by itself. Accesses through it are
// unsafe and have their own conditions; no byte of a region belongs to one thread.
unsafe impl Send for RegionSlice<'_> {}
// SAFETY: any thread may use the memory; a shared reference gives only address and length.
unsafe impl Sync for RegionSlice<'_> {}

impl<'a> RegionSlice<'a> {
    /// Returns the first address.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the slice has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the addresses.
    #[must_use]
    pub fn as_ptr_range(&self) -> Range<*mut u8> {
        let first = self.as_ptr();
        first..first.wrapping_add(self.len)
    }

    /// Returns the bytes for reading.
    ///
    /// # Safety
    /// While the result is used, no thread, process or device writes to these bytes, and no thread
    /// discards them.
    #[must_use]
    pub unsafe fn as_bytes(&self) -> &'a [u8] {
        // SAFETY: the range lies in one mapping that stays while the region is borrowed, for `'a`.
        // All of its bytes are initialized: the kernel provides zeros, and `from_raw` promises it
        // for other memory. This function's condition excludes writes and discards meanwhile.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    /// Returns the bytes for reading and writing.
    ///
    /// # Safety
    /// While the result is used, no other thread, process or device reads or writes these bytes,
    /// and no thread discards them.
    #[must_use]
    pub unsafe fn as_mut_bytes(&self) -> &'a mut [u8] {
        // SAFETY: the range lies in one mapping that stays while the region is borrowed, for `'a`,
        // and its bytes are initialized as in `as_bytes`. This function's condition excludes every
        // other access meanwhile, so the reference is the only one.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl fmt::Debug for RegionSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionSlice({:?}, {} bytes)", self.at, self.len)
    }
}

impl Region {
    /// Returns the addresses of the region.
    #[must_use]
    pub fn as_ptr_range(&self) -> Range<*mut u8> {
        let first = self.base().as_ptr();
        first..first.wrapping_add(self.len())
    }

    /// Returns a range of the region by address.
    ///
    /// # Errors
    /// [`OutOfBounds`](ArenaError::OutOfBounds) if the range is not within the region.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<RegionSlice<'_>, ArenaError> {
        let range = self.resolve(range)?;
        // SAFETY: `resolve` found `start ≤ len`, so the address lies within the region, which is
        // one allocation, or one past its end.
        let at = unsafe { self.base().add(range.start) };
        Ok(RegionSlice { at, len: range.len(), region: PhantomData })
    }

    /// Returns all bytes for reading.
    ///
    /// # Safety
    /// While the result is used, no thread, process or device writes to these bytes, and no thread
    /// discards them.
    #[must_use]
    pub unsafe fn bytes(&self) -> &[u8] {
        let all = RegionSlice { at: self.base(), len: self.len(), region: PhantomData };
        // SAFETY: this function's condition is that of `RegionSlice::as_bytes`, for the same bytes.
        unsafe { all.as_bytes() }
    }

    /// Returns all bytes for reading and writing. Exclusive access to a private region is exclusive
    /// access to its bytes: parts that were split off have other bytes.
    ///
    /// # Errors
    /// [`Shared`](ArenaError::Shared) if another process can write to the bytes;
    /// [`Foreign`](ArenaError::Foreign) if they belong to another owner, which can. Use
    /// [`slice`](Region::slice) then.
    pub fn as_mut_bytes(&mut self) -> Result<&mut [u8], ArenaError> {
        match self.mapping().backing() {
            Some(Backing::Private) => {
                let all = RegionSlice { at: self.base(), len: self.len(), region: PhantomData };
                // SAFETY: regions are not cloned and parts do not overlap, so only this region
                // reaches these bytes, and it is borrowed while the slice is used. Unsafe code that
                // reaches them by address has its own conditions. `discard` needs a reference to
                // the region too.
                Ok(unsafe { all.as_mut_bytes() })
            }
            Some(Backing::Shared) => Err(ArenaError::Shared),
            None => Err(ArenaError::Foreign { what: "a plain slice" }),
        }
    }
}

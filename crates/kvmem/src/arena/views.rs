//! *Views*: the bytes of a region, by address or as slices, for no longer than the region lives.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};
use std::ptr::NonNull;
use std::slice;

use super::{ArenaError, Backing, Region};

/// A range of a region's memory by address and length. It cannot outlive the region, and promises
/// nothing about who else reads or writes: to touch the bytes is up to the holder, as with a
/// pointer.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    at: NonNull<u8>,
    len: usize,
    region: PhantomData<&'a Region>,
}

// SAFETY: a slice is an address and a length; using it is unsafe and has its own conditions. The
// memory may be used by any thread.
unsafe impl Send for Slice<'_> {}
// SAFETY: as above.
unsafe impl Sync for Slice<'_> {}

impl<'a> Slice<'a> {
    /// The first address.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The addresses.
    #[must_use]
    pub fn as_ptr_range(&self) -> Range<*mut u8> {
        let first = self.as_ptr();
        first..first.wrapping_add(self.len)
    }

    /// The bytes, to read.
    ///
    /// # Safety
    /// While the result is used nobody writes to these bytes: no thread, no other process, no
    /// device. Nobody discards them.
    #[must_use]
    pub unsafe fn as_bytes(&self) -> &'a [u8] {
        // SAFETY: the range is mapped as long as the region is borrowed, all of its bytes have a
        // value (the kernel gives zeros), and the caller answers for the rest.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    /// The bytes, to read and write.
    ///
    /// # Safety
    /// While the result is used nobody else reads or writes these bytes: no thread, no other
    /// process, no device. Nobody discards them.
    #[must_use]
    pub unsafe fn as_mut_bytes(&self) -> &'a mut [u8] {
        // SAFETY: as for `as_bytes`; that there is no other reference is the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Slice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({:?}, {} bytes)", self.at, self.len)
    }
}

impl Region {
    /// The addresses of the region.
    #[must_use]
    pub fn as_ptr_range(&self) -> Range<*mut u8> {
        let first = self.base().as_ptr();
        first..first.wrapping_add(self.len())
    }

    /// A range of the region, by address.
    ///
    /// # Errors
    /// [`OutOfBounds`](ArenaError::OutOfBounds).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice<'_>, ArenaError> {
        let range = self.resolve(range)?;
        // SAFETY: the offset is within the region.
        let at = unsafe { self.base().add(range.start) };
        Ok(Slice { at, len: range.len(), region: PhantomData })
    }

    /// All bytes, to read.
    ///
    /// # Safety
    /// As for [`Slice::as_bytes`].
    #[must_use]
    pub unsafe fn bytes(&self) -> &[u8] {
        let all = Slice { at: self.base(), len: self.len(), region: PhantomData };
        // SAFETY: the caller's promise.
        unsafe { all.as_bytes() }
    }

    /// All bytes, to read and write. Whoever has the region alone has its bytes alone, if they are
    /// private: parts that were split off have other bytes.
    ///
    /// # Errors
    /// [`Shared`](ArenaError::Shared) if another process can write to them;
    /// [`Foreign`](ArenaError::Foreign) if they belong to somebody who can. Take a
    /// [`slice`](Region::slice) then.
    pub fn as_mut_bytes(&mut self) -> Result<&mut [u8], ArenaError> {
        match self.mapping().backing() {
            Some(Backing::Private) => {
                let all = Slice { at: self.base(), len: self.len(), region: PhantomData };
                // SAFETY: regions are not cloned and parts do not overlap, so these bytes are
                // reached through this region alone, which is borrowed for as long
                // as the slice is used. Who reaches them by address, in unsafe code,
                // has made promises. `discard` needs the region too.
                Ok(unsafe { all.as_mut_bytes() })
            }
            Some(Backing::Shared) => Err(ArenaError::Shared),
            None => Err(ArenaError::Foreign { what: "a plain slice" }),
        }
    }
}

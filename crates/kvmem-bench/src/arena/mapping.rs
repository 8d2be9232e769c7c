//! *Mapping*: plain memory of the benchmark itself, for the yardsticks that the library is compared
//! with.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use kvmem::arena::Memory;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::Pages;
use super::system;

const BASE_PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Anonymous memory or a memory file, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// `bytes` of addresses that nobody may touch: a reservation, which no limit but that of the
    /// address space forbids.
    pub(crate) fn reserve(bytes: usize) -> Result<Self, Errno> {
        Self::protected(bytes, ProtFlags::empty(), MapFlags::NORESERVE)
    }

    /// `bytes` of the kind of pages that is asked for, none of them resident.
    fn untouched(pages: Pages, bytes: usize) -> Result<Self, Errno> {
        match pages {
            Pages::Huge => Self::map(bytes, MapFlags::HUGETLB | MapFlags::HUGE_2MB),
            Pages::Base => Self::map(bytes, MapFlags::empty())?.advised(Advice::LinuxNoHugepage),
            Pages::Thp => Self::map(bytes, MapFlags::empty())?.advised(Advice::LinuxHugepage),
            Pages::Shared => Self::file(bytes)?.advised(Advice::LinuxHugepage),
        }
    }

    /// `bytes` of a memory file.
    fn file(bytes: usize) -> Result<Self, Errno> {
        let file = memfd_create("kvmem-bench", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bytes as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel picks a fresh range, so no memory of anyone's changes.
        let base =
            unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, bytes })
    }

    fn map(bytes: usize, flags: MapFlags) -> Result<Self, Errno> {
        Self::protected(bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
    }

    fn protected(bytes: usize, access: ProtFlags, flags: MapFlags) -> Result<Self, Errno> {
        // SAFETY: the kernel picks a fresh range, so no memory of anyone's changes.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE | flags)
        }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, bytes })
    }

    fn advised(self, advice: Advice) -> Result<Self, Errno> {
        match self.advise(advice) {
            // A kernel built without THP knows neither advice, and has nothing but base pages.
            Ok(()) | Err(Errno::INVAL) => Ok(self),
            Err(error) => Err(error),
        }
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range is this mapping's own. The advice used here changes how it is backed,
        // never its bytes.
        unsafe { madvise(self.base.as_ptr().cast(), self.bytes, advice) }
    }
}

// SAFETY: it owns its range of addresses; there is no thread to which the range is bound.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives address and length, and lets the kernel fill the range with
// pages, which reads and writes nothing.
unsafe impl Sync for Mapping {}

// SAFETY: 1. Both come from fields that never change. 2. The kernel mapped the addresses in one
// piece, and has no longer ones to give. 3. They are unmapped in `drop` and not before.
unsafe impl Memory for Mapping {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing that borrows from it is left. The
        // call cannot fail for a range that is mapped as a whole, and there would be
        // nothing to do if it did.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// How long one thread takes to map `bytes` with `MAP_POPULATE`.
///
/// `MAP_POPULATE` fills the range before any advice can be given about it, so it gets the pages
/// that the system hands out unasked. Where those are of another kind than the row's, the range is
/// mapped and advised first and then filled by `MADV_POPULATE_WRITE` on the same one thread: the
/// kernel's routine behind both is the same.
pub(crate) fn map_populate(pages: Pages, bytes: usize) -> Result<Duration, Errno> {
    let unasked = match pages {
        Pages::Huge => true,
        Pages::Base => !system::thp_always(),
        Pages::Thp => system::thp_always(),
        Pages::Shared => false,
    };
    let start = Instant::now();
    let mapping = if unasked {
        let huge = MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        let flags = if pages == Pages::Huge { huge } else { MapFlags::empty() };
        Mapping::map(bytes, flags | MapFlags::POPULATE)?
    } else {
        let mapping = Mapping::untouched(pages, bytes)?;
        mapping.advise(Advice::LinuxPopulateWrite)?;
        mapping
    };
    let took = start.elapsed();
    drop(mapping);
    Ok(took)
}

/// How long one thread takes to map `bytes` and write one byte to each page.
///
/// With THP it writes to each base page, as a program does that does not know which kind it got.
pub(crate) fn touch(pages: Pages, bytes: usize) -> Result<Duration, Errno> {
    let step = if pages == Pages::Huge { HUGE_PAGE } else { BASE_PAGE };
    let start = Instant::now();
    let mapping = Mapping::untouched(pages, bytes)?;
    for at in (0..bytes).step_by(step) {
        // SAFETY: `at` is below the length of the mapping, which is writable and this function's
        // own. With hugepages the caller has seen to it that there are enough, and the
        // kernel reserved them when it mapped.
        unsafe { mapping.base.add(at).write_volatile(1) };
    }
    let took = start.elapsed();
    drop(mapping);
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yardsticks_populate_what_they_map() {
        for pages in [Pages::Base, Pages::Thp, Pages::Shared] {
            assert!(map_populate(pages, 4 << 20).unwrap() > Duration::ZERO);
            assert!(touch(pages, 4 << 20).unwrap() > Duration::ZERO);
        }
    }

    #[test]
    fn a_reservation_takes_no_memory() {
        let before = crate::machine::resident_bytes();
        let mapping = Mapping::reserve(8 << 30).unwrap();
        let after = crate::machine::resident_bytes();
        assert_eq!(mapping.len(), 8 << 30);
        if let (Some(before), Some(after)) = (before, after) {
            assert!(after < before + (256 << 20), "{} bytes", after - before);
        }
    }
}

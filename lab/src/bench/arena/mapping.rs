//! Plain memory of the benchmark itself, for the baselines that the library is compared with.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use kvmem::arena::Memory;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::Pages;
use crate::bench::limits;

const BASE_PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Anonymous memory or a memory file, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Reserves `bytes` of inaccessible address space. Only the limit on address space can forbid
    /// this.
    pub(crate) fn reserve(bytes: usize) -> Result<Self, Errno> {
        Self::protected(bytes, ProtFlags::empty(), MapFlags::NORESERVE)
    }

    /// Maps `bytes` with the requested kind of pages, none of them resident.
    fn untouched(pages: Pages, bytes: usize) -> Result<Self, Errno> {
        match pages {
            Pages::Huge => Self::map(bytes, MapFlags::HUGETLB | MapFlags::HUGE_2MB),
            Pages::Base => Self::map(bytes, MapFlags::empty())?.advised(Advice::LinuxNoHugepage),
            Pages::Thp => Self::map(bytes, MapFlags::empty())?.advised(Advice::LinuxHugepage),
            Pages::Shared => Self::file(bytes)?.advised(Advice::LinuxHugepage),
        }
    }

    /// Maps `bytes` of a new memory file.
    fn file(bytes: usize) -> Result<Self, Errno> {
        let file = memfd_create("kvmem-bench", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bytes as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused range, so no existing memory changes.
        let base =
            unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, bytes })
    }

    fn map(bytes: usize, flags: MapFlags) -> Result<Self, Errno> {
        Self::protected(bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
    }

    fn protected(bytes: usize, access: ProtFlags, flags: MapFlags) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses an unused range, so no existing memory changes.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE | flags)
        }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, bytes })
    }

    fn advised(self, advice: Advice) -> Result<Self, Errno> {
        match self.advise(advice) {
            // A kernel built without THP rejects both hints and has only base pages.
            Ok(()) | Err(Errno::INVAL) => Ok(self),
            Err(error) => Err(error),
        }
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range belongs to this mapping. The advice used here changes the pages behind
        // it, never its bytes.
        unsafe { madvise(self.base.as_ptr().cast(), self.bytes, advice) }
    }
}

// SAFETY: it owns its address range, which is not bound to a thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives access to the address and the length, and lets the kernel
// populate the range, which reads and writes nothing.
unsafe impl Sync for Mapping {}

// SAFETY: 1. Both values come from fields that never change. 2. The kernel mapped the addresses in
// one piece, and cannot map longer ones. 3. They are unmapped in `drop` and not before.
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
        // SAFETY: the mapping belongs to this value, and no borrow of it is left. The call cannot
        // fail for a range that is mapped as a whole.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Measures how long one thread takes to map `bytes` with `MAP_POPULATE`.
///
/// `MAP_POPULATE` populates the range before any advice can apply to it, so it gets the system's
/// default pages. If the row needs another kind, the range is mapped and advised first and then
/// populated by `MADV_POPULATE_WRITE` on the same thread: both use the same kernel routine.
pub(crate) fn map_populate(pages: Pages, bytes: usize) -> Result<Duration, Errno> {
    let unasked = match pages {
        Pages::Huge => true,
        Pages::Base => !limits::thp_always(),
        Pages::Thp => limits::thp_always(),
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

/// Measures how long one thread takes to map `bytes` and write one byte to each page.
///
/// With THP it writes to each base page, as does a program that does not know its page size.
pub(crate) fn touch(pages: Pages, bytes: usize) -> Result<Duration, Errno> {
    let step = if pages == Pages::Huge { HUGE_PAGE } else { BASE_PAGE };
    let start = Instant::now();
    let mapping = Mapping::untouched(pages, bytes)?;
    for at in (0..bytes).step_by(step) {
        // SAFETY: `at` is below the length of the mapping, which is writable and belongs to this
        // function. With hugepages the caller has checked that enough are free, and the kernel
        // reserved them when it mapped the range.
        unsafe { mapping.base.add(at).write_volatile(1) };
    }
    let took = start.elapsed();
    drop(mapping);
    Ok(took)
}

//! L1: the arena.
//!
//! These tests run in parallel, so tests of hugetlb pools are in `tests/alone`.

use kvmem::arena::{Backing, Ladder, PageSize, Region, RegionBuilder};

mod bump;
mod byte_size;
mod edges;
mod fork;
mod parts;
mod populate;
mod preflight;
mod receipt;
mod residency;
mod shared;

const MIB: usize = 1 << 20;

/// Returns a builder with base pages only.
fn base(size: usize) -> RegionBuilder {
    Region::builder(size).ladder(Ladder::only(PageSize::Base))
}

/// Returns a builder without hugetlb pages.
fn ordinary(size: usize) -> RegionBuilder {
    Region::builder(size).ladder(Ladder::new([PageSize::Thp, PageSize::Base]))
}

/// Returns the backing for a test that runs with both.
fn backing(shared: bool) -> Backing {
    if shared { Backing::Shared } else { Backing::Private }
}

/// Returns the size of a base page.
fn page() -> usize {
    PageSize::Base.bytes()
}

/// Returns whether the kernel follows advice for transparent hugepages.
fn thp_works() -> bool {
    let read =
        std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    read.contains("[madvise]") || read.contains("[always]")
}

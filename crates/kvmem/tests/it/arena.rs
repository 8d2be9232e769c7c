//! L1: bytes.
//!
//! These tests run side by side, so they leave the pools of hugepages to `tests/alone`.

use kvmem::arena::{Ladder, PageSize, Region, RegionBuilder};

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

/// Base pages only.
fn base(size: usize) -> RegionBuilder {
    Region::builder(size).ladder(Ladder::only(PageSize::Base))
}

/// What needs no pool.
fn ordinary(size: usize) -> RegionBuilder {
    Region::builder(size).ladder(Ladder::new([PageSize::Thp, PageSize::Base]))
}

/// The kernel's size of a base page.
fn page() -> usize {
    PageSize::Base.bytes()
}

/// Whether the kernel can use transparent hugepages where it is advised to.
fn thp_works() -> bool {
    let read =
        std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    read.contains("[madvise]") || read.contains("[always]")
}

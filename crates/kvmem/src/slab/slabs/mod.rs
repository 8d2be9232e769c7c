//! *Slabs*: pages divided into objects of one size, below the magazines.

mod class;
mod fault;
mod page_source;
pub(crate) mod reentrancy;
mod ring;

mod slab;
mod slab_source;

pub(crate) use class::{
    ALIGN, Geometry, MAX_ALIGN, MAX_SIZE, MAX_SIZE_IN_SLAB, SIZES, class_aligned, class_of,
};
pub use fault::SlabFault;
pub(crate) use fault::{FaultHook, abort_on_fault};
pub(crate) use page_source::{Origin, PageSource, PageStats, Reserve};
pub(crate) use slab::Chunk;
pub(crate) use slab_source::Slabs;

//! *Slabs*: pages divided into objects of one size, below the magazines.

mod class;
mod fault;
mod geometry;
mod page_origin;
mod page_source;
mod page_span;
pub(crate) mod reentrancy;
mod ring;

mod slab;
mod slab_source;

pub(crate) use class::{MAX_SIZE, SIZES, class_aligned, class_of};
pub use fault::SlabFault;
pub(crate) use fault::{FaultHook, abort_on_fault};
pub(crate) use geometry::{ALIGN, Geometry, MAX_ALIGN, MAX_SIZE_IN_SLAB};
pub(crate) use page_origin::{Origin, Reserve};
pub(crate) use page_source::{PageSource, PageStats};
pub(crate) use slab::Chunk;
pub(crate) use slab_source::Slabs;

//! The heap: the metadata of one space, which one thread at a time uses.
//!
//! ## 1. The ranges
//!
//! The space is divided into [ranges], used or free, without gap or overlap. The free ones, the
//! holes, are in [bins] by size.
//!
//! ## 2. Allocate
//!
//! The [order](allocate) in which a request tries its ways to a range ends with the [search]: the
//! allocator takes an exact hole among the first entries of the request's own bin, or else one of
//! the next holes that fit. The [placement](super::placement) chooses the hole and the end of it to
//! cut from. Sizes are never rounded.
//!
//! ## 3. Free
//!
//! The allocator examines both neighbours, coalesces the range with those that are free, and puts
//! the result into its bin. It defers this where that pays: for a short time, see [deferred], and
//! in a space that is mostly free, see [quick lists](quick_lists).
//!
//! ## 4. Holes outside the bins
//!
//! Some holes are *held back* from the search: the wholly free segments of a space with a boundary,
//! and the [small-object region](small_objects). They count as free. A request that fits nowhere
//! else opens them before it fails.

mod aligned;
mod allocate;
mod batch;
mod bins;
mod check;
mod chunked_table;
mod deferred;
mod fixed;
mod free;
#[allow(clippy::module_inception)]
mod heap;
mod order;
mod quick_lists;
mod ranges;
mod region_searches;
mod report;
mod resize;
mod scattered;
mod search;
mod shards;
mod slots;
mod small_objects;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use chunked_table::NIL;
pub(crate) use heap::Heap;
pub(crate) use ranges::{MaybePlaced, Placed, SizedRange};
pub(crate) use report::bin_reports;
pub use report::{BinReport, MapRange, Metrics};
pub(crate) use shards::ShardEnds;

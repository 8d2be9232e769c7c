//! The heap: the metadata of one space.

mod aligned;
mod bins;
mod boundary;
mod check;
mod deferred;
#[allow(clippy::module_inception)]
mod heap;
mod order;
mod report;
mod resize;
mod scattered;
mod small_objects;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use heap::{Heap, MaybePlaced, Placed};
pub use report::{BinReport, MapRange, Metrics};
pub(crate) use scattered::SizedRange;
#[cfg(not(loom))]
pub(crate) use table::NIL;

//! *Pages*: their sizes, the ladder of kinds to try, and the NUMA nodes that they are wanted on.

mod fallback;
mod ladder;
mod numa;
mod page_bounds;
mod size;

pub(super) use page_bounds::{address_at, outward};

pub use fallback::Fallback;
pub use ladder::Ladder;
pub use numa::Nodes;
pub use numa::{Numa, ParseNumaError};
pub use size::{PageSize, ParsePagesError};

//! *Pages*: their sizes, the ladder of kinds to try, and the NUMA nodes that they are wanted on.

mod fallback;
mod ladder;
mod nodes;
mod numa;
mod size;

pub use fallback::Fallback;
pub use ladder::Ladder;
pub use nodes::Nodes;
pub use numa::{Numa, ParseNumaError};
pub use size::{PageSize, ParsePagesError};

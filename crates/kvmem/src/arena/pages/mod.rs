//! *Pages*: their sizes, the ladder of kinds to try, and their NUMA nodes.

mod numa;
mod size;

pub(super) use numa::nodes_found;

pub use numa::{Nodes, Numa, ParseNumaError};
pub use size::{Ladder, PageSize, ParsePagesError};

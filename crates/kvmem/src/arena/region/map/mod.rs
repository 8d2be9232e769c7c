//! *Mapping*: addresses, the pages in them, and the state that the parts of a region share.

mod map_pages;
mod mapped_span;
mod mapping;
pub(super) mod memfd;
mod numa_policy;
mod options;
mod pinned_range;
mod pinned_ranges;
mod private;
mod shared;
mod span;
pub(super) mod survey;

pub(super) use map_pages::{map_pages, shield};
pub(super) use mapped_span::{MappedSpan, Segment};
pub(super) use mapping::Mapping;
pub(super) use numa_policy::nodes_found;
pub(super) use options::MapOptions;
pub(crate) use pinned_range::PinnedRange;
pub(super) use shared::map_whole;

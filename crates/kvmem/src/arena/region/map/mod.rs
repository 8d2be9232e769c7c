//! *Mapping*: addresses, the pages in them, and the state that the parts of a region share.

pub(crate) mod mapping;
pub(crate) mod memfd;
mod pinned_range;
mod private;
mod span;

pub(crate) use mapping::{Mapping, outward};
pub(crate) use pinned_range::PinnedRange;
pub(crate) use private::{MappedSpan, Segment, map_pages, map_whole, shield};

//! *Index*: which values there are, and in which order they go.

#[allow(clippy::module_inception)]
mod index;
mod scattered;
mod slots;
mod table;

pub(crate) use index::{Index, Indexed, Ranges, seconds_now};

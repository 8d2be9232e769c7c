//! *Index*: which values there are, and in which order they go.

#[allow(clippy::module_inception)]
mod index;
mod ranges;
mod scattered;
mod slots;
mod table;

pub(crate) use index::{Index, seconds_now};
pub(crate) use ranges::{Indexed, Ranges};

//! The bins: free ranges, found by size.

#[allow(clippy::module_inception)]
mod bins;
mod holes;
mod splits;

pub(crate) use bins::{Bins, bin_floor, bin_size_max, bin_size_min};
pub(crate) use holes::{Hole, NULL_HOLE};

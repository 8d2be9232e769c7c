//! The bins: free ranges, found by size in a fixed number of steps.
//!
//! A free range is a [`Hole`]. Holes of about the same size share a bin; a bin is a list, last in
//! first out. Every octave of sizes is divided into 64 bins. Two levels of bitmap show which bins
//! are non-empty, and two count-zeros find the next one (Masmano et al., *TLSF: a new dynamic
//! memory allocator for real-time systems*, 2004). Unlike TLSF, which rounds up, the search begins
//! with the request's own bin. Long bins are [split](splits) into narrower lists.

mod bin_sizes;
#[allow(clippy::module_inception)]
mod bins;
mod bitmap;
mod check;
mod holes;
mod lists;
mod merging;
mod splits;
mod splitting;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use bin_sizes::{bin_floor, bin_size_max, bin_size_min};
pub(crate) use bins::Bins;
pub(crate) use holes::{Hole, NULL_HOLE, RUN};

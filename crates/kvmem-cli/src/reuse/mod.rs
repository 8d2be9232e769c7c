//! *Reuse*: what `kvmem trace` reports of the hit rates of a trace, for every size of a pool.
//!
//! [`kvmem_trace::reuse`] has the theory and the distances. [`summary`] reads a trace through them,
//! and [`curve`] is the result.

pub mod curve;
pub mod summary;

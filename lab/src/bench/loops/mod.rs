//! The loops. Each drives one contender through one workload and returns its figures.
//!
//! Loops are generic over the contender and do as little else as possible: a random draw, a push or
//! a `swap_remove`, a running sum. A time is that of the whole measured loop divided by its number
//! of operations ([`crate::bench::clock`]). An operation is one request, with all failing calls and
//! evictions that it needs.

pub mod aging;
pub mod bimodal;
pub mod counted;
pub mod filled;
pub mod memory;
pub mod paired;
pub mod random;
pub mod shift;
pub mod short;
pub mod uniform;

use crate::bench::stats::Utilization;

/// The seed's stream of requests.
const REQUESTS: u64 = 0;
/// The seed's stream of victims of eviction.
const VICTIMS: u64 = 1;

/// The figures of a loop under random eviction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Utilization.
    pub util: Utilization,
    /// Nanoseconds per operation.
    pub ns_per_op: f64,
}

//! The loops: each drives one contender through one workload and says what it saw.
//!
//! Loops are generic over the contender and do as little as they can beside it: a draw, a push or a
//! `swap_remove`, a running sum. Where time is taken, it is that of the whole measured loop over
//! its number of operations ([`crate::clock`]), and an operation is one request, with all the
//! failing calls and evictions it needs.

pub mod bimodal;
pub mod memory;
pub mod paired;
pub mod random;
pub mod scatter;
pub mod shift;
pub mod uniform;

use crate::contender::CreateError;
use crate::live::Stuck;
use crate::stats::Util;

/// Streams of the seed: what is asked for.
const REQUESTS: u64 = 0;
/// Streams of the seed: who is evicted.
const VICTIMS: u64 = 1;

/// Why a loop could not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoopError {
    /// The contender refused the space.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A request did not fit into the empty space.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// Nothing was measured.
    #[error("the loop ended without a sample")]
    NoSamples,
}

/// What a loop under random eviction saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Utilization.
    pub util: Util,
    /// Nanoseconds per operation.
    pub ns_per_op: f64,
    /// Objects alive at the end.
    pub live: usize,
    /// Utilization samples taken.
    pub samples: usize,
}

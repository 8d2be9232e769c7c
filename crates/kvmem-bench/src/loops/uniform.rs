//! One size at a time.
//!
//! Pool/size requests to warm up, then the measured ones; on failure one random object is evicted
//! at a time until the request fits; utilization is taken after every request.

use kvmem_testkit::workload::stream;

use super::{LoopError, VICTIMS};
use crate::clock::Stopwatch;
use crate::contender::{Contender, Space};
use crate::live::Live;

/// The published pool for sizes from 1 KiB.
pub const POOL: u64 = 2 << 30;
/// The published pool for smaller sizes, which would take too long in the larger one.
pub const POOL_SMALL: u64 = POOL / 16;

/// The pool of the row for `size`.
pub fn pool_for(size: u64) -> u64 {
    if size < 1024 { POOL_SMALL } else { POOL }
}

/// The 55 published sizes in three families of the powers of four times 32: exact, ± 17, × 0.9 and
/// × 1.1.
pub fn sizes() -> Vec<u64> {
    let powers = || (0..11).map(|i| 32u64 << (2 * i));
    let tenths = |size: u64, factor: u64| size * factor / 10;
    powers()
        .chain(powers().map(|size| size - 17))
        .chain(powers().map(|size| size + 17))
        .chain(powers().map(|size| tenths(size, 9)))
        .chain(powers().map(|size| tenths(size, 11)))
        .collect()
}

/// The best that any allocator can do: whole objects only.
pub fn bound(size: u64, pool: u64) -> f64 {
    (pool / size * size) as f64 / pool as f64
}

/// What the loop saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Smallest share of the pool in use after a request.
    pub util_min: f64,
    /// Mean share.
    pub util_avg: f64,
    /// Nanoseconds per request.
    pub ns_per_op: f64,
    /// Objects alive at the end.
    pub live: usize,
}

/// Runs `ops` measured requests of `size` bytes in `pool` bytes.
pub fn run<C: Contender>(seed: u64, size: u64, pool: u64, ops: u64) -> Result<Outcome, LoopError> {
    let space = Space::for_sizes_from(size, pool);
    let mut live = Live::new(C::create(space)?, space.max_live, stream(seed ^ size, VICTIMS));
    for _ in 0..pool / size {
        live.put(size)?;
    }
    let (mut least, mut sum) = (u64::MAX, 0u128);
    let watch = Stopwatch::start();
    for _ in 0..ops {
        live.put(size)?;
        let bytes = live.bytes();
        least = least.min(bytes);
        sum += u128::from(bytes);
    }
    let ns_per_op = watch.ns_per_op(ops);
    if ops == 0 {
        return Err(LoopError::NoSamples);
    }
    Ok(Outcome {
        util_min: least as f64 / pool as f64,
        util_avg: sum as f64 / ops as f64 / pool as f64,
        ns_per_op,
        live: live.len(),
    })
}

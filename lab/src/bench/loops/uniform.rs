//! One size at a time.
//!
//! Pool/size requests warm up, then the measured ones follow. On failure one random object at a
//! time is evicted until the request fits. Utilization is sampled after every request.

use anyhow::{Result, ensure};
use kvmem_testkit::workload::stream;

use super::{Outcome, VICTIMS};
use crate::bench::clock::Stopwatch;
use crate::bench::contender::{Contender, Space};
use crate::bench::live_set::LiveSet;
use crate::bench::stats::Utilization;

/// The published pool for sizes from 1 KiB.
pub const POOL: u64 = 2 << 30;
/// The published pool for smaller sizes, which would take too long in the larger pool.
pub const POOL_SMALL: u64 = POOL / 16;

/// Returns the pool for `size`.
pub fn pool_for(size: u64) -> u64 {
    if size < 1024 { POOL_SMALL } else { POOL }
}

/// Returns the 55 published sizes, variations of 32 times the powers of four: exact, ± 17, × 0.9
/// and × 1.1.
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

/// Returns the bound for any allocator: whole objects only.
pub fn bound(size: u64, pool: u64) -> f64 {
    (pool / size * size) as f64 / pool as f64
}

/// Runs `ops` measured requests of `size` bytes in `pool` bytes. Of the utilization only the least
/// and the mean are summarized.
pub fn run<C: Contender>(seed: u64, size: u64, pool: u64, ops: u64) -> Result<Outcome> {
    ensure!(ops > 0, "the loop would end without a sample");
    let space = Space::for_sizes_from(size, pool);
    let mut live = LiveSet::new(C::create(space)?, space.max_live, stream(seed ^ size, VICTIMS));
    for _ in 0..pool / size {
        live.put(size)?;
    }
    let (mut min, mut sum) = (u64::MAX, 0u128);
    let watch = Stopwatch::start();
    for _ in 0..ops {
        live.put(size)?;
        let bytes = live.bytes();
        min = min.min(bytes);
        sum += u128::from(bytes);
    }
    let ns_per_op = watch.ns_per_op(ops);
    let (min, avg) = (min as f64 / pool as f64, sum as f64 / ops as f64 / pool as f64);
    Ok(Outcome { util: Utilization { min, avg, ..Utilization::default() }, ns_per_op })
}

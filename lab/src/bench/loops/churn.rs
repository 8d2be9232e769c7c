//! A thousand ranges alive, of sixteen sizes.
//!
//! Each operation frees a range at random and allocates another one, in a space that is almost
//! empty: placement has no part in it.

use kvmem_testkit::workload::stream;
use rand::RngExt;

use super::{LoopError, REQUESTS};
use crate::bench::clock::Stopwatch;
use crate::bench::contender::{Contender, Space};
use crate::bench::live_set::StuckError;

/// The space.
pub const POOL: u64 = 1 << 40;
/// Ranges alive at a time.
pub const LIVE: usize = 1000;
/// The smallest size, and the step to the next one.
const SIZES: (u64, u64) = (4096, 512);

/// Runs `ops` exchanges of a range for another one; returns nanoseconds per exchange.
pub fn run<C: Contender>(seed: u64, ops: u64) -> Result<f64, LoopError> {
    let space = C::create(Space { capacity: POOL, max_live: LIVE + 1 })?;
    let mut requests = stream(seed, REQUESTS);
    let (least, step) = SIZES;
    let allocate = |size| space.allocate(size).ok_or(StuckError { size });
    let mut live = (0..LIVE).map(|_| allocate(least)).collect::<Result<Vec<_>, _>>()?;
    let watch = Stopwatch::start();
    for _ in 0..ops {
        // One draw for both: where, and how long.
        let draw: u64 = requests.random();
        drop(live.swap_remove((draw >> 32) as usize % LIVE));
        live.push(allocate(least + (draw & 15) * step)?);
    }
    Ok(watch.ns_per_op(ops))
}

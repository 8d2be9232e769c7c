//! The `random` workload with requests served by several ranges when none is long enough.
//!
//! The loop is that of [`super::random`], but up to a given number of ranges may serve a request.
//! An eviction frees all ranges of one request.

use kvmem_testkit::workload::{Sizes, stream};
use rand::RngExt;

use super::{LoopError, Outcome, REQUESTS, VICTIMS};
use crate::bench::clock::Stopwatch;
use crate::bench::contender::{Contender, RangeHandle, Space};
use crate::bench::live_set::StuckError;
use crate::bench::stats::Utilization;

/// Runs `ops` measured requests from `sizes` in `pool` bytes, each in at most `max_ranges` ranges.
pub fn run<C: Contender>(
    seed: u64,
    sizes: &Sizes,
    pool: u64,
    ops: u64,
    max_ranges: usize,
) -> Result<Outcome, LoopError> {
    let space = C::create(Space::for_sizes_from(sizes.min(), pool))?;
    let (mut requests, mut victims) = (stream(seed, REQUESTS), stream(seed, VICTIMS));
    let mut live: Vec<Vec<C::Handle>> = Vec::with_capacity(1 << 12);
    let mut bytes = 0;
    let mut put = |live: &mut Vec<Vec<C::Handle>>, bytes: &mut u64, size: u64| loop {
        if let Some(ranges) = space.allocate_scattered(size, max_ranges) {
            *bytes += size;
            live.push(ranges);
            return Ok(());
        }
        if live.is_empty() {
            return Err(StuckError { size });
        }
        let victim = live.swap_remove(victims.random_range(0..live.len()));
        *bytes -= victim.iter().map(RangeHandle::size).sum::<u64>();
    };
    let mut requested = 0;
    while requested < pool {
        let size = sizes.sample(&mut requests);
        put(&mut live, &mut bytes, size)?;
        requested += size;
    }
    let mut samples = Vec::with_capacity(ops as usize);
    let watch = Stopwatch::start();
    for _ in 0..ops {
        put(&mut live, &mut bytes, sizes.sample(&mut requests))?;
        samples.push(bytes);
    }
    let ns_per_op = watch.ns_per_op(ops);
    let util = Utilization::of(&mut samples, pool).ok_or(LoopError::NoSamples)?;
    Ok(Outcome { util, ns_per_op, live: live.len() })
}

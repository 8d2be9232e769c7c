//! Sizes from a distribution, one random eviction at a time.
//!
//! The published workload draws from 1 KiB to 64 MiB, every size equally likely, in a pool of 2 GiB. Requests are made until
//! the sizes asked for add up to the pool, then the measured ones follow; utilization is taken after every
//! request. [`mixes`] are seven further distributions in the same loop: an allocator that was fitted to
//! one of them shows in the others.

use std::time::Instant;

use kvmem_testkit::workload::{Sizes, stream};

use super::{LoopError, Outcome, REQUESTS, VICTIMS};
use crate::contender::{Contender, Space};
use crate::live::Live;
use crate::stats::Util;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The published pool.
pub const POOL: u64 = 2 << 30;

/// The published distribution.
pub fn sizes() -> Sizes {
    Sizes::Uniform { min: KIB, max: 64 * MIB }
}

/// The seven other distributions, by name.
pub fn mixes() -> [(&'static str, Sizes); 7] {
    let largest = 64 * MIB;
    [
        ("lognormal", Sizes::LogNormal { median: 4e6, sigma: 1.0, min: 4 * KIB, max: largest }),
        ("exponential", Sizes::Exponential { mean: 8e6, min: 4 * KIB, max: largest }),
        ("eight-sizes", Sizes::OneOf((1..=8).map(|i| i * 3_300_000).collect())),
        ("u32-64MiB", Sizes::Uniform { min: 32 * MIB, max: largest }),
        ("log-uniform", Sizes::LogUniform { min: 4 * KIB, max: largest }),
        (
            "four-hot",
            Sizes::Hot {
                sizes: vec![658_432, 3_274_752, 5_242_880, 11_534_336],
                share: 0.8,
                rest: Box::new(Sizes::Uniform { min: KIB, max: largest }),
            },
        ),
        ("u51-64MiB", Sizes::Uniform { min: 51 * MIB, max: largest }),
    ]
}

/// Runs `ops` measured requests from `sizes` in `pool` bytes.
pub fn run<C: Contender>(seed: u64, sizes: &Sizes, pool: u64, ops: u64) -> Result<Outcome, LoopError> {
    let space = Space::for_sizes_from(sizes.min(), pool);
    let mut live = Live::new(C::create(space)?, 1 << 16, stream(seed, VICTIMS));
    let mut requests = stream(seed, REQUESTS);
    let mut asked = 0;
    while asked < pool {
        let size = sizes.sample(&mut requests);
        live.put(size)?;
        asked += size;
    }
    let mut samples = Vec::with_capacity(ops as usize);
    let start = Instant::now();
    for _ in 0..ops {
        live.put(sizes.sample(&mut requests))?;
        samples.push(live.bytes());
    }
    let elapsed = start.elapsed();
    let util = Util::of(&mut samples, pool).ok_or(LoopError::NoSamples)?;
    Ok(Outcome {
        util,
        ns_per_op: elapsed.as_nanos() as f64 / ops as f64,
        live: live.len(),
        samples: samples.len(),
    })
}

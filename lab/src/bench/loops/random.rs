//! Sizes from a distribution, one random eviction at a time.
//!
//! The published workload draws from 1 KiB to 64 MiB, every size equally likely, in a pool of 2
//! GiB. Requests are made until the requested sizes add up to the pool; then the measured ones
//! follow. Utilization is sampled after every request. [`mixes`] are seven further distributions in
//! the same loop; they expose an allocator that was tuned to one of them. Their parameters (sizes
//! around 8 MiB where a distribution leaves them open) are such that an allocator that could move
//! objects would reach 0.992 on average; exact best fit reaches 0.867 and the published allocator
//! 0.844.

use anyhow::Result;
use kvmem_testkit::workload::{Sizes, stream};

use super::paired::KV_BYTES;
use super::{Outcome, REQUESTS, VICTIMS};
use crate::bench::clock::Stopwatch;
use crate::bench::contender::{Contender, RangeHandle, Space};
use crate::bench::live_set::LiveSet;
use crate::bench::stats::Utilization;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The published pool.
pub const POOL: u64 = 2 << 30;

/// Returns the published distribution.
pub fn sizes() -> Sizes {
    Sizes::Uniform { min: KIB, max: 64 * MIB }
}

/// Returns the seven other distributions, with their names.
pub fn mixes() -> [(&'static str, Sizes); 7] {
    let (min, max) = (4 * KIB, 64 * MIB);
    let mean = (8 * MIB) as f64;
    [
        ("lognormal", Sizes::LogNormal { median: mean, sigma: 1.0, min, max }),
        ("exponential", Sizes::Exponential { mean, min, max }),
        // One to eight KV objects of the published model.
        ("eight-sizes", Sizes::OneOf((1..=8).map(|n| n * KV_BYTES).collect())),
        ("u32-64MiB", Sizes::Uniform { min: 32 * MIB, max }),
        ("log-uniform", Sizes::LogUniform { min, max }),
        // Four of five requests are for one of four sizes.
        (
            "four-hot",
            Sizes::Hot {
                sizes: vec![3 * MIB, 5 * MIB, 7 * MIB, 11 * MIB],
                share: 0.8,
                rest: Box::new(Sizes::Uniform { min: KIB, max: 16 * MIB }),
            },
        ),
        ("u51-64MiB", Sizes::Uniform { min: 51 * MIB, max }),
    ]
}

/// Runs `ops` measured requests from `sizes` in the published pool.
pub fn run<C: Contender>(seed: u64, sizes: &Sizes, ops: u64) -> Result<Outcome> {
    let space = Space::for_sizes_from(sizes.min(), POOL);
    let mut live = LiveSet::new(C::create(space)?, 1 << 16, stream(seed, VICTIMS));
    let mut requests = stream(seed, REQUESTS);
    let mut requested = 0;
    while requested < POOL {
        let size = sizes.sample(&mut requests);
        live.put(size)?;
        requested += size;
    }
    let mut samples = Vec::with_capacity(ops as usize);
    let watch = Stopwatch::start();
    for _ in 0..ops {
        live.put(sizes.sample(&mut requests))?;
        samples.push(live.bytes());
    }
    let ns_per_op = watch.ns_per_op(ops);
    Ok(Outcome { util: Utilization::of(&mut samples, POOL)?, ns_per_op })
}

/// A contender that serves a request by up to `RANGES` ranges if none is long enough. An eviction
/// frees all ranges of one request.
pub struct Scattered<C, const RANGES: usize>(C);

/// The ranges of one request.
pub struct Ranges<H>(Vec<H>);

impl<H: RangeHandle> RangeHandle for Ranges<H> {
    fn size(&self) -> u64 {
        self.0.iter().map(RangeHandle::size).sum()
    }
}

impl<C: Contender, const RANGES: usize> Contender for Scattered<C, RANGES> {
    type Handle = Ranges<C::Handle>;

    fn create(space: Space) -> Result<Self> {
        Ok(Self(C::create(space)?))
    }

    fn allocate(&self, size: u64) -> Option<Self::Handle> {
        self.0.allocate_scattered(size, RANGES).map(Ranges)
    }
}

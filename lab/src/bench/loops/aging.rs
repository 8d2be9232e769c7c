//! *Aging*: utilization in the course of a space's history.
//!
//! A fresh space serves requests one after the other. Evictions then leave holes where they happen
//! to fall, and after some turnovers (a turnover is requests that add up to the pool) holes and
//! ranges are mixed for good. A placement that is good in a fresh space only shows here: the first
//! figure is the fill at which the first request fails, each further one is the mean utilization
//! from the step before to its own. Utilization depends on the seed alone, not on the machine.

use anyhow::{Result, ensure};
use kvmem_testkit::workload::{Sizes, stream};
use rand::RngExt;

use super::paired::{INDEX_BYTES, KV_BYTES};
use super::{REQUESTS, VICTIMS, paired, random};
use crate::bench::contender::{Contender, Space};
use crate::bench::live_set::LiveSet;

/// The steps: turnovers since the space was made, with the name of the figure.
pub const STEPS: [(u64, &str); 7] = [
    (1, "first failure"),
    (2, "to 2"),
    (5, "to 5"),
    (10, "to 10"),
    (20, "to 20"),
    (50, "to 50"),
    (100, "to 100"),
];

/// Utilization at the first failed request, and from step to step.
pub type Course = [f64; STEPS.len()];

/// Live bytes in the course of a step.
#[derive(Default)]
struct Samples {
    /// Live bytes when the first request failed.
    first_failure: Option<u64>,
    sum: u128,
    count: u64,
}

impl Samples {
    fn add(&mut self, bytes: u64) {
        self.sum += u128::from(bytes);
        self.count += 1;
    }
}

/// Ages a space by sizes of a distribution, one random eviction at a time, as the loop `random`:
/// samples follow each request.
pub fn mixed<C: Contender>(seed: u64, sizes: &Sizes) -> Result<Course> {
    let space = Space::for_sizes_from(sizes.min(), random::POOL);
    let mut live = LiveSet::new(C::create(space)?, 1 << 16, stream(seed, VICTIMS));
    let mut requests = stream(seed, REQUESTS);
    course(random::POOL, |samples| {
        let (size, before) = (sizes.sample(&mut requests), live.bytes());
        live.put(size)?;
        if live.bytes() < before + size {
            samples.first_failure.get_or_insert(before);
        }
        samples.add(live.bytes());
        Ok(size)
    })
}

/// Ages a space by pairs of KV and index objects, as the loop `paired`: samples are taken before
/// each eviction.
pub fn pairs<C: Contender>(seed: u64, pool: u64) -> Result<Course> {
    let space = Space::for_sizes_from(INDEX_BYTES, pool);
    let mut live = LiveSet::new(C::create(space)?, space.max_live, stream(seed, VICTIMS));
    let mut requests = stream(seed, REQUESTS);
    course(pool, |samples| {
        let n = requests.random_range(1..=paired::MAX_OBJECTS);
        for size in [KV_BYTES, INDEX_BYTES] {
            for _ in 0..n {
                live.put_evicting_many(size, |bytes| {
                    samples.first_failure.get_or_insert(bytes);
                    samples.add(bytes);
                })?;
            }
        }
        Ok(n * (KV_BYTES + INDEX_BYTES))
    })
}

/// Repeats `request`, which returns its bytes, until the last step.
fn course(pool: u64, mut request: impl FnMut(&mut Samples) -> Result<u64>) -> Result<Course> {
    let (mut requested, mut first_failure) = (0, None);
    let mut course = [0.0; STEPS.len()];
    for (share, (step, name)) in course.iter_mut().zip(STEPS) {
        let mut samples = Samples { first_failure, ..Samples::default() };
        while requested < step * pool || samples.first_failure.is_none() {
            requested += request(&mut samples)?;
        }
        *share = match (first_failure, samples.first_failure) {
            (None, Some(bytes)) => bytes as f64,
            _ => samples.sum as f64 / samples.count as f64,
        } / pool as f64;
        ensure!(share.is_finite(), "no request failed {name} turnovers");
        first_failure = samples.first_failure;
    }
    Ok(course)
}

//! Loops in which placement has no part: an exchange of one of a thousand ranges, a pair of an
//! allocation and a free, and a request that fails.

use std::hint::black_box;

use anyhow::Result;
use kvmem_testkit::workload::stream;
use rand::RngExt;

use super::REQUESTS;
use crate::bench::clock::Stopwatch;
use crate::bench::contender::{Contender, Space};
use crate::bench::live_set::StuckError;

/// The space of [`churn`] and [`pair`].
const POOL: u64 = 1 << 40;
/// The space of [`impossible`], which one range fills.
const FULL_POOL: u64 = 1 << 30;
/// Ranges alive in [`churn`].
const LIVE: usize = 1000;
/// The smallest size, and the step to the next one of sixteen.
const SIZES: (u64, u64) = (4096, 512);

/// Frees a range at random and allocates another one, `ops` times, with a thousand ranges of
/// sixteen sizes alive in a space that is almost empty; returns nanoseconds per exchange.
pub fn churn<C: Contender>(seed: u64, ops: u64) -> Result<f64> {
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

/// Allocates and frees a range `ops` times in an empty space; returns nanoseconds per pair.
pub fn pair<C: Contender>(ops: u64) -> Result<f64> {
    let space = C::create(Space { capacity: POOL, max_live: 2 })?;
    let watch = Stopwatch::start();
    for _ in 0..ops {
        let range = space.allocate(black_box(SIZES.0)).ok_or(StuckError { size: SIZES.0 })?;
        drop(black_box(range));
    }
    Ok(watch.ns_per_op(ops))
}

/// Requests a range `ops` times in a space that has no room for it, as a full store makes most of
/// the time; returns nanoseconds per request.
pub fn impossible<C: Contender>(ops: u64) -> Result<f64> {
    let space = C::create(Space { capacity: FULL_POOL, max_live: 2 })?;
    let all = space.allocate(FULL_POOL).ok_or(StuckError { size: FULL_POOL })?;
    let watch = Stopwatch::start();
    for _ in 0..ops {
        black_box(space.allocate(black_box(SIZES.0)).is_some());
    }
    let ns_per_op = watch.ns_per_op(ops);
    drop(all);
    Ok(ns_per_op)
}

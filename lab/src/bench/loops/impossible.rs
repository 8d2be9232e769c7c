//! Requests that a full space cannot satisfy, as a full store makes most of the time.

use std::hint::black_box;

use super::{LoopError, pair};
use crate::bench::clock::Stopwatch;
use crate::bench::contender::{Contender, Space};
use crate::bench::live_set::StuckError;

/// The space, which one range fills.
pub const POOL: u64 = 1 << 30;

/// Requests a range `ops` times in a space that has no room for it; returns nanoseconds per
/// request.
pub fn run<C: Contender>(ops: u64) -> Result<f64, LoopError> {
    let space = C::create(Space { capacity: POOL, max_live: 2 })?;
    let all = space.allocate(POOL).ok_or(StuckError { size: POOL })?;
    let watch = Stopwatch::start();
    for _ in 0..ops {
        black_box(space.allocate(black_box(pair::SIZE)).is_some());
    }
    let ns_per_op = watch.ns_per_op(ops);
    drop(all);
    Ok(ns_per_op)
}

//! One range at a time, allocated and freed at once, in an empty space.

use std::hint::black_box;

use super::LoopError;
use crate::bench::clock::Stopwatch;
use crate::bench::contender::{Contender, Space};
use crate::bench::live_set::StuckError;

/// The space.
pub const POOL: u64 = 1 << 40;
/// Bytes of the range.
pub const SIZE: u64 = 4096;

/// Runs `ops` pairs of an allocation and a free; returns nanoseconds per pair.
pub fn run<C: Contender>(ops: u64) -> Result<f64, LoopError> {
    let space = C::create(Space { capacity: POOL, max_live: 2 })?;
    let watch = Stopwatch::start();
    for _ in 0..ops {
        let range = space.allocate(black_box(SIZE)).ok_or(StuckError { size: SIZE })?;
        drop(black_box(range));
    }
    Ok(watch.ns_per_op(ops))
}

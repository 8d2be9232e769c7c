//! *Strategy*: how many registrars are called concurrently, or how that is measured.

use std::ops::Range;

use super::plan::{CalibrationPlan, DevicePlan};
use super::policy::PlanOptions;
use super::policy::Policy;
use crate::threads::{ROUNDS, ladder};

/// Calibration on slices registers at most 1/48 of all bytes.
const SLICES_SHARE: u64 = 48;
/// Calibration on chunks registers at most 1/32 of the chunks in the slower way.
const CHUNKS_SHARE: usize = 32;
/// The same share if no other calibration is possible: 1/8.
const MAX_CHUNKS_SHARE: usize = 8;
/// The longest slice; longer ones add no information.
const MAX_SLICE_BYTES: u64 = 256 << 20;

/// How registrars are called for one or more regions.
#[derive(Clone, Copy, Debug)]
pub(in crate::register) struct CallStrategy {
    pub(in crate::register) policy: Policy,
    /// The largest number of registrars called concurrently.
    pub(in crate::register) threads: usize,
    /// How that number is measured; `None`: it is not measured.
    pub(in crate::register) calibration: Option<CalibrationPlan>,
}

impl CallStrategy {
    /// Returns the strategy for the devices of each of these regions, which have `len` bytes in
    /// total and may be untouched; and the number of threads that could be used at all.
    pub(in crate::register) fn choose(
        options: &PlanOptions,
        regions: &[&[DevicePlan]],
        len: u64,
        untouched: bool,
        min_slice_bytes: u64,
    ) -> (CallStrategy, usize) {
        let devices = regions.first().map_or(0, |devices| devices.len());
        let max_threads = match options.policy {
            Policy::Sequential => 1,
            // Nothing else populates the pages: the first registrar faults them in, called alone.
            _ if untouched => 1,
            Policy::Parallel(threads) => threads.get().min(devices),
            Policy::Auto => options.cores.max(1).min(devices),
        };
        let auto = options.policy == Policy::Auto;
        let calibration = (auto && max_threads > 1)
            .then(|| {
                calibration_plan(
                    regions,
                    devices,
                    len,
                    max_threads,
                    options.by_range,
                    min_slice_bytes,
                )
            })
            .flatten();
        // Work that is too short to measure is too short to be worth threads.
        let threads = if auto && calibration.is_none() { 1 } else { max_threads };
        (CallStrategy { policy: options.policy, threads, calibration }, max_threads)
    }
}

/// Returns a calibration that costs little compared with the whole; `None` if there is none.
fn calibration_plan(
    regions: &[&[DevicePlan]],
    devices: usize,
    len: u64,
    threads: usize,
    by_range: bool,
    min_slice_bytes: u64,
) -> Option<CalibrationPlan> {
    let steps = ladder(threads).count();
    // The chunks or slices that one round needs for each of the two ways.
    let each: usize = ladder(threads).sum();
    let counts = (0..devices)
        .map(|at| regions.iter().map(|devices| devices[at].chunks.len()).sum::<usize>());
    let (shortest, total) =
        counts.fold((usize::MAX, 0), |(least, sum), count| (least.min(count), sum + count));
    let on_chunks = |share: usize, max_rounds: usize| {
        let rounds = (shortest / (2 * steps)).min(total / (share * each)).min(max_rounds);
        (rounds > 0 && !by_range).then_some(CalibrationPlan::Chunks { rounds })
    };
    let on_slices = || {
        let work = len.saturating_mul(devices as u64);
        let slices = (2 * ROUNDS * each) as u64;
        // Slices are taken from the first step of the first region.
        let longest = regions
            .first()?
            .iter()
            .filter_map(|device| device.chunks.first())
            .map(Range::len)
            .min()? as u64;
        let slice_bytes = (work / (SLICES_SHARE * slices)).min(MAX_SLICE_BYTES).min(longest)
            / min_slice_bytes
            * min_slice_bytes;
        (slice_bytes > 0).then_some(CalibrationPlan::Slices { rounds: ROUNDS, slice_bytes })
    };
    on_chunks(CHUNKS_SHARE, ROUNDS).or_else(on_slices).or_else(|| on_chunks(MAX_CHUNKS_SHARE, 1))
}

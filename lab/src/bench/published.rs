//! The published figures of the allocator that `binned` and `binned-unrounded` model.
//!
//! Source: Mooncake Store's allocator performance page and the pull request that introduced its
//! OffsetAllocator (July 2025; the paired workload was added later). "Rounded" is that allocator
//! after its optimization for uniform sizes, "exact" before it. The paired workload was published
//! for the rounded form only. The machine is not named; compare times within one machine only.

use super::contender::ContenderId;
use super::loops::Outcome;
use super::stats::Utilization;

/// The uniform tables, in the order in which they were published.
const UNIFORM: &str = include_str!("published.csv");

/// Sizes from 1 KiB to 64 MiB in 2 GiB, rounded.
pub const RANDOM_ROUNDED: Outcome = Outcome {
    util: Utilization { min: 0.544250, p99: 0.713338, p90: 0.779739, p50: 0.847867, avg: 0.841576 },
    ns_per_op: 145.575738,
};

/// Sizes from 1 KiB to 64 MiB in 2 GiB, exact.
pub const RANDOM_EXACT: Outcome = Outcome {
    util: Utilization { min: 0.569255, p99: 0.712076, p90: 0.781224, p50: 0.855046, avg: 0.848873 },
    ns_per_op: 142.508508,
};

/// KV and index objects in 1 TiB, rounded. The figures come from 243 samples.
pub const PAIRED_ROUNDED: Outcome = Outcome {
    util: Utilization { min: 0.951814, p99: 0.951879, p90: 0.952077, p50: 0.952382, avg: 0.952343 },
    ns_per_op: 352.207986,
};

/// Returns the published minimum, mean and time to compare with `contender` in the uniform row of
/// `size`.
pub fn uniform(contender: ContenderId, size: u64) -> Option<[f64; 3]> {
    let fields = UNIFORM.lines().find_map(|line| line.strip_prefix(&format!("{size},")))?;
    let first = if contender == ContenderId::BinnedUnrounded { 3 } else { 0 };
    let mut figures = fields.split(',').skip(first).map(|field| field.parse().ok());
    Some([figures.next()??, figures.next()??, figures.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::loops::uniform;

    #[test]
    fn the_tables_have_the_sizes_of_the_workload() {
        let has = |size| uniform(ContenderId::BinnedUnrounded, size).is_some();
        assert!(uniform::sizes().into_iter().all(has) && UNIFORM.lines().count() == 56);
    }
}

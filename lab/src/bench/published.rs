//! The published figures of the allocator that `binned` and `binned-unrounded` model.
//!
//! Source: Mooncake Store's allocator performance page and the pull request that introduced its
//! OffsetAllocator (July 2025; the paired workload was added later). "Rounded" is that allocator
//! after its optimization for uniform sizes, "exact" before it. The paired workload was published
//! for the rounded form only. The machine is not named; compare times within one machine only.

use crate::bench::contender::ContenderId;
use crate::bench::stats::Utilization;

/// Published figures of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedFigures {
    /// Smallest utilization.
    pub util_min: f64,
    /// Mean utilization.
    pub util_avg: f64,
    /// Nanoseconds per request.
    pub ns: f64,
}

/// One size of the uniform tables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uniform {
    /// Bytes of a request.
    pub size: u64,
    /// After the optimization.
    pub rounded: PublishedFigures,
    /// Before it.
    pub exact: PublishedFigures,
}

/// Mixed sizes: the published part of the distribution of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixed {
    /// Utilization.
    pub util: Utilization,
    /// Nanoseconds per request.
    pub ns: f64,
}

const fn fig(util_min: f64, util_avg: f64, ns: f64) -> PublishedFigures {
    PublishedFigures { util_min, util_avg, ns }
}

const fn row(size: u64, rounded: PublishedFigures, exact: PublishedFigures) -> Uniform {
    Uniform { size, rounded, exact }
}

/// The uniform tables, in the order in which they were published.
#[rustfmt::skip]
pub const UNIFORM: [Uniform; 55] = [
    row(32, fig(1.0, 1.0, 544.0), fig(1.0, 1.0, 539.0)),
    row(128, fig(1.0, 1.0, 417.0), fig(1.0, 1.0, 419.0)),
    row(512, fig(1.0, 1.0, 174.0), fig(1.0, 1.0, 217.0)),
    row(2_048, fig(1.0, 1.0, 406.0), fig(1.0, 1.0, 408.0)),
    row(8_192, fig(1.0, 1.0, 180.0), fig(1.0, 1.0, 175.0)),
    row(32_768, fig(1.0, 1.0, 133.0), fig(1.0, 1.0, 130.0)),
    row(131_072, fig(1.0, 1.0, 109.0), fig(1.0, 1.0, 107.0)),
    row(524_288, fig(1.0, 1.0, 100.0), fig(1.0, 1.0, 99.0)),
    row(2_097_152, fig(1.0, 1.0, 99.0), fig(1.0, 1.0, 100.0)),
    row(8_388_608, fig(1.0, 1.0, 99.0), fig(1.0, 1.0, 98.0)),
    row(33_554_432, fig(1.0, 1.0, 98.0), fig(1.0, 1.0, 98.0)),
    row(15, fig(1.0, 1.0, 568.0), fig(1.0, 1.0, 566.0)),
    row(111, fig(0.991071, 0.991071, 441.0), fig(0.669866, 0.710845, 703.0)),
    row(495, fig(0.966797, 0.966797, 178.0), fig(0.665779, 0.676874, 238.0)),
    row(2_031, fig(0.991699, 0.991699, 418.0), fig(0.668333, 0.705411, 637.0)),
    row(8_175, fig(0.997925, 0.997925, 170.0), fig(0.666175, 0.676474, 242.0)),
    row(32_751, fig(0.999481, 0.999481, 133.0), fig(0.664435, 0.669078, 168.0)),
    row(131_055, fig(0.99987, 0.99987, 109.0), fig(0.66062, 0.667341, 124.0)),
    row(524_271, fig(0.999968, 0.999968, 100.0), fig(0.653055, 0.666993, 118.0)),
    row(2_097_135, fig(0.999992, 0.999992, 99.0), fig(0.64062, 0.666873, 116.0)),
    row(8_388_591, fig(0.999998, 0.999998, 98.0), fig(0.605468, 0.667812, 115.0)),
    row(33_554_415, fig(0.999999, 0.999999, 99.0), fig(0.5625, 0.670944, 116.0)),
    row(49, fig(0.942308, 0.942308, 508.0), fig(0.692229, 0.753062, 1122.0)),
    row(145, fig(0.906249, 0.906249, 372.0), fig(0.667789, 0.700907, 572.0)),
    row(529, fig(0.918399, 0.918399, 172.0), fig(0.66577, 0.676238, 238.0)),
    row(2_065, fig(0.896267, 0.896267, 403.0), fig(0.667926, 0.704884, 632.0)),
    row(8_209, fig(0.89073, 0.89073, 174.0), fig(0.665708, 0.676372, 239.0)),
    row(32_785, fig(0.889347, 0.889347, 131.0), fig(0.664224, 0.669058, 168.0)),
    row(131_089, fig(0.88897, 0.88897, 105.0), fig(0.659631, 0.667287, 129.0)),
    row(524_305, fig(0.888701, 0.888701, 102.0), fig(0.652609, 0.666884, 122.0)),
    row(2_097_169, fig(0.888679, 0.888679, 100.0), fig(0.638677, 0.666516, 120.0)),
    row(8_388_625, fig(0.886721, 0.886721, 100.0), fig(0.60547, 0.665131, 121.0)),
    row(33_554_449, fig(0.875, 0.875, 100.0), fig(0.546875, 0.660917, 120.0)),
    row(28, fig(1.0, 1.0, 543.0), fig(1.0, 1.0, 539.0)),
    row(115, fig(0.958333, 0.958333, 418.0), fig(0.669299, 0.709245, 701.0)),
    row(460, fig(0.958332, 0.958332, 189.0), fig(0.665825, 0.677532, 255.0)),
    row(1_843, fig(0.959896, 0.959896, 418.0), fig(0.669352, 0.709202, 691.0)),
    row(7_372, fig(0.959895, 0.959895, 197.0), fig(0.66619, 0.677401, 260.0)),
    row(29_491, fig(0.959993, 0.959993, 135.0), fig(0.664311, 0.669511, 172.0)),
    row(117_964, fig(0.959979, 0.959979, 111.0), fig(0.661812, 0.667356, 133.0)),
    row(471_859, fig(0.959985, 0.959985, 100.0), fig(0.654345, 0.667048, 123.0)),
    row(1_887_436, fig(0.959765, 0.959765, 99.0), fig(0.640722, 0.666447, 121.0)),
    row(7_549_747, fig(0.959766, 0.959766, 99.0), fig(0.611719, 0.666847, 119.0)),
    row(30_198_988, fig(0.95625, 0.95625, 99.0), fig(0.548437, 0.669799, 125.0)),
    row(35, fig(0.972222, 0.972222, 531.0), fig(0.7098, 0.774162, 1306.0)),
    row(140, fig(0.972222, 0.972222, 397.0), fig(0.667934, 0.702151, 599.0)),
    row(563, fig(0.977427, 0.977427, 180.0), fig(0.665599, 0.675548, 239.0)),
    row(2_252, fig(0.97743, 0.97743, 389.0), fig(0.667371, 0.701623, 601.0)),
    row(9_011, fig(0.977752, 0.977752, 183.0), fig(0.665485, 0.675528, 244.0)),
    row(36_044, fig(0.977752, 0.977752, 133.0), fig(0.663248, 0.668912, 170.0)),
    row(144_179, fig(0.977739, 0.977739, 106.0), fig(0.660308, 0.666934, 127.0)),
    row(576_716, fig(0.977538, 0.977538, 103.0), fig(0.654467, 0.66679, 122.0)),
    row(2_306_867, fig(0.977539, 0.977539, 99.0), fig(0.633789, 0.666159, 121.0)),
    row(9_227_468, fig(0.975391, 0.975391, 99.0), fig(0.597266, 0.666037, 118.0)),
    row(36_909_875, fig(0.9625, 0.9625, 100.0), fig(0.55, 0.669564, 121.0)),
];

/// Sizes from 1 KiB to 64 MiB in 2 GiB, rounded.
pub const RANDOM_ROUNDED: Mixed = Mixed {
    util: Utilization {
        min: 0.544250,
        p99: 0.713338,
        p90: 0.779739,
        p50: 0.847867,
        max: 0.952591,
        avg: 0.841576,
    },
    ns: 145.575738,
};

/// Sizes from 1 KiB to 64 MiB in 2 GiB, exact.
pub const RANDOM_EXACT: Mixed = Mixed {
    util: Utilization {
        min: 0.569255,
        p99: 0.712076,
        p90: 0.781224,
        p50: 0.855046,
        max: 0.976057,
        avg: 0.848873,
    },
    ns: 142.508508,
};

/// KV and index objects in 1 TiB, rounded. The figures come from 243 samples.
pub const PAIRED_ROUNDED: Mixed = Mixed {
    util: Utilization {
        min: 0.951814,
        p99: 0.951879,
        p90: 0.952077,
        p50: 0.952382,
        max: 0.952621,
        avg: 0.952343,
    },
    ns: 352.207986,
};

/// Returns the published figures to compare with `contender` in the uniform row of `size`.
pub fn uniform(contender: ContenderId, size: u64) -> Option<PublishedFigures> {
    let row = UNIFORM.iter().find(|row| row.size == size)?;
    Some(if contender == ContenderId::BinnedUnrounded { row.exact } else { row.rounded })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::loops::uniform;

    #[test]
    fn the_tables_have_the_sizes_of_the_workload() {
        assert_eq!(UNIFORM.map(|row| row.size).to_vec(), uniform::sizes());
    }
}

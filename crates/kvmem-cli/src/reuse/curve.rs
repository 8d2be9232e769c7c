//! *Curve*: the hit rate by the size of a pool.

use std::fmt;

use indicatif::BinaryBytes;
use serde::Serialize;

use super::summary::{TraceSummary, percent};
use kvmem_trace::reuse::distances::ReuseDistances;

/// Points of a drawn curve for each power of two.
const POINTS_PER_OCTAVE: u32 = 16;

/// The hit rates of a trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct HitCurve {
    /// The trace.
    #[serde(flatten)]
    pub summary: TraceSummary,
    /// Hit rates of some pools, in the order of their sizes.
    pub curve: Vec<CurveRow>,
    /// Hit rates of many pools, for a plot.
    #[serde(skip)]
    pub points: Vec<CurveRow>,
}

/// The hit rate of a pool.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct CurveRow {
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// The share of the requested bytes that it has.
    pub hit_rate: f64,
    /// The same, over that of a pool without end.
    pub of_max: f64,
    /// How far the hit rate may be wrong, with a probability of 95 %.
    pub error: f64,
}

impl HitCurve {
    /// Returns the curve at `pools`, or else at powers of two, which are none if nothing can be a
    /// hit.
    pub fn new(
        summary: TraceSummary,
        distances: &ReuseDistances,
        pools: Option<&[u64]>,
    ) -> HitCurve {
        let row = |pool_bytes| {
            let (hit_rate, error) = (distances.hit_rate(pool_bytes), distances.error(pool_bytes));
            let of_max = hit_rate / summary.max_hit_rate.max(f64::MIN_POSITIVE);
            CurveRow { pool_bytes, hit_rate, of_max, error }
        };
        let Some((least, largest)) = distances.reach_range() else {
            let mut curve: Vec<CurveRow> =
                pools.unwrap_or_default().iter().copied().map(row).collect();
            curve.sort_unstable_by_key(|row| row.pool_bytes);
            return HitCurve { curve, points: Vec::new(), summary };
        };
        // From the last power of two without hits to the first with all of them.
        let powers = least.ilog2()..=largest.ilog2() + u32::from(!largest.is_power_of_two());
        let octaves = powers.clone().map(|power| 1u64 << power.min(63));
        let mut sizes = pools.map_or_else(|| octaves.collect(), <[u64]>::to_vec);
        sizes.sort_unstable();
        sizes.dedup();
        let (first, last) = (powers.start() * POINTS_PER_OCTAVE, powers.end() * POINTS_PER_OCTAVE);
        let fine = (first..=last)
            .map(|point| (f64::from(point) / f64::from(POINTS_PER_OCTAVE)).exp2() as u64);
        let points = fine.map(row).collect();
        HitCurve { curve: sizes.into_iter().map(row).collect(), points, summary }
    }
}

impl fmt::Display for HitCurve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.summary)?;
        if self.curve.is_empty() {
            return Ok(());
        }
        let is_exact = self.summary.is_exact();
        let error = if is_exact { "" } else { "   ±" };
        writeln!(f, "\n{:>12} {:>10}{error} {:>12}", "pool", "hit rate", "of possible")?;
        for row in &self.curve {
            let error = match is_exact {
                true => String::new(),
                false => format!("{:>4.1}", 100.0 * row.error),
            };
            let (rate, of_max) = (percent(row.hit_rate), percent(row.of_max));
            let pool = BinaryBytes(row.pool_bytes).to_string();
            writeln!(f, "{pool:>12} {rate:>10}{error} {of_max:>12}")?;
        }
        Ok(())
    }
}

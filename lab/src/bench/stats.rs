//! Utilization samples and their summary.

use anyhow::{Context, Result};

/// Shares of the pool, in 0..=1. Percentiles are defined as in the published table: 99 % of the
/// samples are at least p99, so `min ≤ p99 ≤ p90 ≤ p50`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Utilization {
    /// Smallest sample.
    pub min: f64,
    /// 99 % of the samples are at least this.
    pub p99: f64,
    /// 90 % of the samples are at least this.
    pub p90: f64,
    /// Half of the samples are at least this.
    pub p50: f64,
    /// Mean.
    pub avg: f64,
}

impl Utilization {
    /// Summarizes samples in bytes of a pool of `pool` bytes, and sorts them.
    pub fn of(samples: &mut [u64], pool: u64) -> Result<Self> {
        samples.sort_unstable();
        let min = *samples.first().context("the loop ended without a sample")?;
        let share = |bytes: u64| bytes as f64 / pool as f64;
        let reached_by = |percent: usize| share(samples[samples.len() * (100 - percent) / 100]);
        let sum: u128 = samples.iter().map(|&bytes| u128::from(bytes)).sum();
        Ok(Self {
            min: share(min),
            p99: reached_by(99),
            p90: reached_by(90),
            p50: reached_by(50),
            avg: sum as f64 / samples.len() as f64 / pool as f64,
        })
    }
}

/// Returns the median, the lower of the two middle values if their number is even; `None` without
/// values.
pub fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len().saturating_sub(1) / 2).copied()
}

/// Returns the mean; `None` without values.
pub fn mean(figures: &[f64]) -> Option<f64> {
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_count_from_the_top() {
        let mut samples: Vec<u64> = (0..1000).rev().collect();
        let util = Utilization::of(&mut samples, 1000).unwrap();
        assert_eq!((util.min, util.p99, util.p90, util.p50), (0.0, 0.01, 0.1, 0.5));
        assert!((util.avg - 0.4995).abs() < 1e-12);
        assert!(Utilization::of(&mut [], 1).is_err());
    }

    #[test]
    fn median_and_mean() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.0));
        assert_eq!(median(vec![]), None);
        assert_eq!(mean(&[1.0, 2.0]), Some(1.5));
    }
}

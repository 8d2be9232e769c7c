//! Distributions of request sizes.

use rand::RngExt;
use rand_distr::{Distribution, Exp1, StandardNormal};

use super::Rng;

/// A distribution of request sizes in bytes. Every size is at least one byte.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// Every size from `min` to `max`, both included, equally likely.
    Uniform {
        /// Smallest size.
        min: u64,
        /// Largest size.
        max: u64,
    },
    /// The logarithm is uniform: each power of two between `min` and `max` is equally likely.
    LogUniform {
        /// Smallest size.
        min: u64,
        /// Largest size.
        max: u64,
    },
    /// The logarithm is normal with deviation `sigma` around that of `median`; clamped to `min` and
    /// `max`.
    LogNormal {
        /// The median before clamping.
        median: f64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
        /// Smaller draws are raised to this.
        min: u64,
        /// Larger draws are lowered to this.
        max: u64,
    },
    /// Exponential with mean `mean`; clamped to `min` and `max`.
    Exponential {
        /// The mean before clamping.
        mean: f64,
        /// Smaller draws are raised to this.
        min: u64,
        /// Larger draws are lowered to this.
        max: u64,
    },
    /// One of a few sizes, equally likely.
    OneOf(Vec<u64>),
    /// One of a few sizes with probability `share`, otherwise from `rest`.
    Hot {
        /// The few sizes, equally likely among themselves.
        sizes: Vec<u64>,
        /// The probability of these sizes, in 0..=1.
        share: f64,
        /// The distribution of all other requests.
        rest: Box<Sizes>,
    },
}

impl Sizes {
    /// Draws one size.
    ///
    /// # Panics
    /// If the distribution is empty: `min` above `max`, or no size to choose from.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        match *self {
            Self::Uniform { min, max } => rng.random_range(min..=max),
            Self::LogUniform { min, max } => {
                let (low, high) = ((min as f64).ln(), (max as f64).ln());
                clamp(rng.random_range(low..=high).exp(), min, max)
            }
            Self::LogNormal { median, sigma, min, max } => {
                let normal: f64 = StandardNormal.sample(rng);
                clamp(median * (sigma * normal).exp(), min, max)
            }
            Self::Exponential { mean, min, max } => {
                let unit: f64 = Exp1.sample(rng);
                clamp(mean * unit, min, max)
            }
            Self::OneOf(ref sizes) => sizes[rng.random_range(0..sizes.len())],
            Self::Hot { ref sizes, share, ref rest } => {
                if rng.random_bool(share) {
                    sizes[rng.random_range(0..sizes.len())]
                } else {
                    rest.sample(rng)
                }
            }
        }
    }

    /// Returns the smallest possible size.
    #[must_use]
    pub fn min(&self) -> u64 {
        match *self {
            Self::Uniform { min, .. }
            | Self::LogUniform { min, .. }
            | Self::LogNormal { min, .. }
            | Self::Exponential { min, .. } => min,
            Self::OneOf(ref sizes) => sizes.iter().copied().min().unwrap_or(0),
            Self::Hot { ref sizes, ref rest, .. } => {
                sizes.iter().copied().min().map_or(rest.min(), |hot| hot.min(rest.min()))
            }
        }
    }
}

/// Converts to whole bytes, clamped to `min..=max`.
fn clamp(size: f64, min: u64, max: u64) -> u64 {
    (size as u64).clamp(min, max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::stream;

    fn draw(sizes: &Sizes, n: usize) -> Vec<u64> {
        let mut rng = stream(7, 0);
        (0..n).map(|_| sizes.sample(&mut rng)).collect()
    }

    #[test]
    fn means_and_medians_are_as_named() {
        let mean = |sizes| draw(&sizes, 100_000).iter().sum::<u64>() as f64 / 1e5;
        let near = |value: f64, want: f64| {
            assert!((value / want - 1.0).abs() < 0.02, "{value} is not near {want}")
        };
        near(mean(Sizes::Uniform { min: 0, max: 2_000_000 }), 1e6);
        near(mean(Sizes::Exponential { mean: 1e6, min: 1, max: u64::MAX }), 1e6);
        near(
            mean(Sizes::LogUniform { min: 1 << 10, max: 1 << 20 }),
            ((1 << 20) - (1 << 10)) as f64 / 1024f64.ln(),
        );
        let mut drawn =
            draw(&Sizes::LogNormal { median: 1e6, sigma: 1.0, min: 1, max: u64::MAX }, 100_000);
        drawn.sort_unstable();
        near(drawn[50_000] as f64, 1e6);
        let rest = Box::new(Sizes::OneOf(vec![2]));
        let hot = draw(&Sizes::Hot { sizes: vec![1], share: 0.8, rest }, 100_000);
        near(hot.iter().filter(|&&s| s == 1).count() as f64, 8e4);
    }
}

//! *Histogram* of sizes, in steps of at most 0.2 %.
//!
//! Sizes up to 512 have a step each; above, each power of two is divided into 512 steps, as
//! HdrHistogram does it. A step ends with a multiple of its width, so powers of two are ends. A
//! size is rounded up to the end of its step, so a curve made of it never promises too much.

/// Steps of a power of two.
const STEPS: u64 = 512;

/// Weights by size.
#[derive(Clone, Debug, Default)]
pub struct SizeHistogram {
    weights: Vec<f64>,
    total: f64,
}

impl SizeHistogram {
    /// Adds a weight to a size, which is at least 1. O(1).
    pub fn add(&mut self, size: u64, weight: f64) {
        let step = step_of(size);
        if step >= self.weights.len() {
            self.weights.resize(step + 1, 0.0);
        }
        self.weights[step] += weight;
        self.total += weight;
    }

    /// Returns the sum of all weights.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// Returns the ends of the steps that have a weight, and the sum of all weights up to each.
    pub fn sums(&self) -> impl Iterator<Item = (u64, f64)> {
        let steps = self.weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0);
        steps.scan(0.0, |sum, (step, weight)| {
            *sum += weight;
            Some((end_of(step), *sum))
        })
    }

    /// Returns the sum of the weights of all sizes up to this one, less those of its own step
    /// unless it is the step's end. O(N).
    pub fn up_to(&self, size: u64) -> f64 {
        let step = step_of(size);
        let steps = if size > 0 && end_of(step) == size { step + 1 } else { step };
        self.weights.iter().take(steps).sum()
    }

    /// Returns the least size up to which there is this weight; `None` if there is less.
    pub fn quantile(&self, weight: f64) -> Option<u64> {
        // Sums of floats differ in their last digits.
        let least = weight * (1.0 - 1e-9);
        self.sums().find(|(_, sum)| *sum >= least).map(|(size, _)| size)
    }
}

fn step_of(size: u64) -> usize {
    let before = size.saturating_sub(1);
    let octave = u64::from(before.max(1).ilog2().saturating_sub(STEPS.ilog2()));
    // The first octave has its own steps and those below it.
    (octave * STEPS + (before >> octave)) as usize
}

/// Returns the largest size of a step.
fn end_of(step: usize) -> u64 {
    let step = step as u64;
    let octave = (step / STEPS).saturating_sub(1);
    // The last end is 2^64, which saturates.
    (step - octave * STEPS + 1).saturating_mul(1 << octave)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cover_all_sizes_and_are_narrow() {
        for power in 0..64 {
            for offset in [0u64, 1, 2, 511, 512, 513] {
                let size = (1u64 << power).saturating_add((offset << power) >> 9);
                let step = step_of(size);
                let end = end_of(step);
                assert!(end >= size && end - size <= size / 512, "{size}: {end}");
                assert_eq!(step_of(end), step);
                if end < u64::MAX {
                    assert_eq!(step_of(end + 1), step + 1, "{size}");
                }
            }
        }
        assert_eq!(end_of(step_of(u64::MAX)), u64::MAX);
    }

    #[test]
    fn sums_and_quantiles_are_those_of_the_sizes() {
        let mut sizes = SizeHistogram::default();
        for (size, weight) in [(100, 1.0), (7, 2.0), (1 << 40, 5.0), (100, 0.5)] {
            sizes.add(size, weight);
        }
        assert_eq!(sizes.total(), 8.5);
        assert_eq!(sizes.sums().map(|(_, sum)| sum).collect::<Vec<_>>(), [2.0, 3.5, 8.5]);
        assert_eq!(
            [0, 6, 7, 99, 100, (1 << 40) - 1, 1 << 40].map(|size| sizes.up_to(size)),
            [0.0, 0.0, 2.0, 2.0, 3.5, 3.5, 8.5]
        );
        assert_eq!(sizes.quantile(2.0), Some(7));
        assert_eq!(sizes.quantile(2.1), Some(100));
        assert_eq!(sizes.quantile(8.5), Some(1 << 40));
        assert_eq!(sizes.quantile(9.0), None);
    }
}

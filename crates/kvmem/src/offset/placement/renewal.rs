//! *Renewal value*: the value of a hole of size *m*.
//!
//! It is the number of bytes of current traffic that the hole is expected to absorb. Let *p* be the
//! distribution of the recent request sizes, *F* its cumulative form. The next request has size *s*
//! with probability *p(s)*. If it fits, *s* bytes are absorbed and a hole of *m − s* remains;
//! otherwise the hole waits, at a discount γ:
//!
//! ```text
//!            Σ_{s ≤ m} p(s) · (s + U(m − s))
//! U(m)  =   ─────────────────────────────────
//!                1 − γ · (1 − F(m))
//! ```
//!
//! This is a renewal equation (Feller, *An Introduction to Probability Theory and Its
//! Applications*, vol. 2, ch. XI). It is [solved](super::equation) from small *m* to large on a
//! grid up to the largest recent size and on to four times that; beyond, *U* continues with the
//! same slope.
//!
//! Where sizes are few, U is a staircase and the grid must be fine. Where they are many, U is
//! smooth and a grid with half of the points suffices.

use super::equation::solve;
use super::traffic::{FEW_CELLS, GRID, GridCell, Traffic};

/// Grid points in all.
const POINTS: usize = 4 * GRID + 1;
/// Fine cells per coarse one, where sizes are many.
const FOLD: usize = 2;

/// U, tabulated.
#[derive(Clone)]
pub(crate) struct Renewal {
    /// U at the points of the grid, in an arbitrary unit: its values are only compared with each
    /// other.
    value: Box<[f32; POINTS]>,
    /// Grid points per byte, times 2^64.
    scale: u64,
    largest: u64,
    filled: usize,
}

impl Renewal {
    /// Creates U of no traffic: every hole has value 0.
    pub(crate) fn new() -> Self {
        Renewal { value: Box::new([0.0; POINTS]), scale: 0, largest: 0, filled: 0 }
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.value)
    }

    /// Returns the largest size of the last update.
    pub(crate) fn largest(&self) -> u64 {
        self.largest
    }

    /// Returns the number of clearly different sizes in the traffic, if they are few.
    pub(crate) fn few_sizes(&self) -> Option<usize> {
        (self.filled < FEW_CELLS).then_some(self.filled)
    }

    /// Returns U(size), in an arbitrary unit.
    #[inline]
    pub(crate) fn value(&self, size: u64) -> f32 {
        let point = ((u128::from(size) * u128::from(self.scale)) >> 64) as usize;
        match self.value.get(point) {
            Some(&value) => value,
            None => self.value_beyond(point),
        }
    }

    #[cold]
    fn value_beyond(&self, point: usize) -> f32 {
        let last = self.value[POINTS - 1];
        let slope = (last - self.value[POINTS / 2]) / (POINTS / 2) as f32;
        last + slope * (point - (POINTS - 1)) as f32
    }

    /// Computes U from the latest request sizes if those are few, which shows a change of sizes
    /// soon, and otherwise from all stored ones.
    #[cold]
    pub(crate) fn update_model(
        &mut self,
        latest: impl Iterator<Item = u64> + Clone,
        all: impl Iterator<Item = u64> + Clone,
    ) {
        let latest = Traffic::of(latest).filter(Traffic::is_few);
        let Some(Traffic { cells, requests, largest, filled }) =
            latest.or_else(|| Traffic::of(all))
        else {
            return;
        };
        (self.largest, self.filled) = (largest, filled);
        self.scale = ((GRID as u128) << 64).div_ceil(u128::from(largest)) as u64;
        let mut value = [0.0; POINTS + GRID];
        if self.few_sizes().is_some() {
            solve(&cells, requests, true, &mut value);
        } else {
            let mut coarse = [GridCell::default(); GRID / FOLD];
            for (i, cell) in cells.iter().enumerate() {
                coarse[i / FOLD].requests += cell.requests;
                coarse[i / FOLD].sum += cell.sum / FOLD as f32;
            }
            solve(&coarse, requests, false, &mut value[..(POINTS + GRID) / FOLD]);
            for i in (0..POINTS).rev() {
                let (a, b, within) =
                    (value[i / FOLD], value[i / FOLD + 1], (i % FOLD) as f32 / FOLD as f32);
                value[i] = a + (b - a) * within;
            }
        }
        // A hole's size is looked up at the point below it; the step of U that a size makes must
        // not be missed.
        for (entry, &next) in self.value.iter_mut().zip(&value[1..]) {
            *entry = next;
        }
        self.value[POINTS - 1] = value[POINTS - 1];
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::equation::GAMMA;
    use super::*;

    fn of(sizes: &[u64]) -> Renewal {
        let mut renewal = Renewal::new();
        renewal.update_model(sizes.iter().copied(), sizes.iter().copied());
        renewal
    }

    #[test]
    fn one_size_makes_a_staircase() {
        let size = 3_274_752;
        let u = of(&[size; 100]);
        assert_eq!(u.few_sizes(), Some(1));
        assert!(u.value(size - size / 100) < 1e-3, "a hole that is too short is worth nothing");
        let one = u.value(size);
        assert!(one > 0.0);
        assert!(
            (u.value(size + size / 2) - one).abs() < one * 1e-3,
            "half a size more is worth no more"
        );
        assert!(
            (u.value(2 * size) - 2.0 * one).abs() < one * 1e-2,
            "two sizes are worth twice as much"
        );
    }

    #[test]
    fn the_equation_holds_for_many_sizes() {
        // Sizes evenly spread up to `largest`: checked against the plain recursion on a grid of its
        // own.
        let largest = 1_000_000u64;
        let sizes: Vec<u64> = (1..=1000).map(|i| i * largest / 1000).collect();
        let u = of(&sizes);
        assert_eq!(u.few_sizes(), None);
        let mut plain = vec![0.0f64; 2001];
        for m in 1..plain.len() {
            let fitting = m.min(1000);
            let sum: f64 = (1..=fitting).map(|s| (s as f64 + plain[m - s]) / 1000.0).sum();
            plain[m] = sum / (1.0 - f64::from(GAMMA) * (1.0 - fitting as f64 / 1000.0));
        }
        for m in [100, 500, 900, 1000, 1500, 1900] {
            let (found, expected) = (
                f64::from(u.value(m as u64 * largest / 1000)),
                plain[m] * (GRID / FOLD) as f64 / 1000.0,
            );
            assert!(
                (found - expected).abs() < 0.02 * expected + 0.2,
                "U({m}) is {found}, plainly {expected}"
            );
        }
    }

    #[test]
    fn it_never_falls_and_goes_on_beyond_the_grid() {
        let sizes: Vec<u64> = (0..1024u64).map(|i| 1000 + i * i % 7919 * 500).collect();
        let u = of(&sizes);
        let values: Vec<f32> = (0..100).map(|i| u.value(i * u.largest() / 10)).collect();
        assert!(values.windows(2).all(|pair| pair[0] <= pair[1] * 1.001), "{values:?}");
        assert!(values[99] > values[50]);
        assert!(u.value(1 << 63).is_finite());
    }
}

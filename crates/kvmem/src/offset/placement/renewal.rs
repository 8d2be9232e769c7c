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
//! Applications*, vol. 2, ch. XI). It is solved from small *m* to large on a grid up to the largest
//! recent size and on to four times that; beyond, *U* continues with the same slope.
//!
//! Where sizes are few, U is a staircase and the grid must be fine, but few terms are not zero.
//! Where they are many, every term counts, but U is smooth and a grid with half of the points
//! suffices. Either way a solution costs a few microseconds.

/// Grid points up to the largest recent size.
const GRID: usize = 320;
/// Grid points in all.
const POINTS: usize = 4 * GRID + 1;
/// Fine cells per coarse one, where sizes are many.
const FOLD: usize = 2;
/// Sizes are few while fewer cells than this are non-empty.
const FEW_CELLS: usize = 24;
/// The discount of waiting: the weight of a hole's value after a request that does not fit.
const GAMMA: f32 = 0.7;

/// U, tabulated.
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

/// Request sizes on the grid.
struct Traffic {
    /// Cell j contains the sizes in (j, j + 1] points.
    cells: [GridCell; GRID],
    requests: f32,
    /// The largest size; it is on the last point.
    largest: u64,
    /// Number of non-empty cells.
    filled: usize,
}

impl Traffic {
    fn of(sizes: impl Iterator<Item = u64> + Clone) -> Option<Self> {
        // The largest size is on a point. Where there is one size only, the step of U is therefore
        // at that size. It is at least as large as the grid is long, so the scale fits.
        let largest = sizes.clone().max()?.max(GRID as u64 + 1);
        let mut traffic =
            Traffic { cells: [GridCell::default(); GRID], requests: 0.0, largest, filled: 0 };
        let points_a_byte = GRID as f32 / largest as f32;
        for size in sizes {
            let points = size as f32 * points_a_byte;
            let whole = points as usize;
            // A size on a point belongs to the cell below it.
            let j = whole - usize::from(whole as f32 == points && whole > 0);
            let cell = &mut traffic.cells[j.min(GRID - 1)];
            traffic.filled += usize::from(cell.requests == 0.0);
            cell.requests += 1.0;
            cell.sum += points;
            traffic.requests += 1.0;
        }
        Some(traffic)
    }

    fn is_few(&self) -> bool {
        self.filled < FEW_CELLS
    }
}

/// Requests within one cell of the grid.
#[derive(Clone, Copy, Default)]
struct GridCell {
    requests: f32,
    sum: f32,
}

/// Solves the renewal equation on the grid of `cells`, up to four times its length. `value` is
/// longer than that by one more, and zero.
fn solve(cells: &[GridCell], requests: f32, few: bool, value: &mut [f32]) {
    // With s between two points, U(m − s) is a mixture of U(m − cell) and U(m − cell − 1):
    // kernel[k] is the total weight of U(m − k). U(m) itself is on both sides of the equation if
    // sizes below one step occur.
    let mut kernel = [0.0f32; GRID + 1];
    let share = requests.recip();
    for (j, cell) in cells.iter().enumerate() {
        let beyond = (cell.sum - cell.requests * j as f32) * share;
        kernel[j] += cell.requests * share - beyond;
        kernel[j + 1] += beyond;
    }
    let kernel = &kernel[..cells.len() + 1];
    // By point: the bytes that a request that fits absorbs at once, and the factor for a wait.
    let mut absorbed = [0.0; GRID];
    let mut wait = [0.0; GRID];
    let (mut fits, mut bytes) = (0.0, 0.0);
    for (i, cell) in cells.iter().enumerate() {
        fits += cell.requests * share;
        bytes += cell.sum * share;
        (absorbed[i], wait[i]) =
            (bytes, (1.0 - GAMMA * (1.0 - fits) - kernel[0]).max(1e-6).recip());
    }
    // From the largest size on, everything fits.
    let last = cells.len() - 1;
    let solved = |m: usize, gathered: f32| {
        (absorbed[(m - 1).min(last)] + gathered) * wait[(m - 1).min(last)]
    };
    if few {
        // Each point needs only those that lie one of a few steps below: a block as long as the
        // shortest step can be gathered at once.
        let mut steps = [(0, 0.0); 2 * FEW_CELLS];
        let mut len = 0;
        for (k, &weight) in kernel.iter().enumerate().skip(1).filter(|(_, weight)| **weight != 0.0)
        {
            steps[len] = (k, weight);
            len += 1;
        }
        let steps = &steps[..len];
        let points = 4 * cells.len();
        let mut m = 1;
        while m <= points {
            let end = (m + steps[0].0).min(points + 1);
            for &(k, weight) in steps.iter().filter(|(k, _)| *k < end) {
                let skip = k.saturating_sub(m);
                let (below, block) = value.split_at_mut(m);
                let below = &below[m + skip - k..];
                for (sum, &u) in block[skip..end - m].iter_mut().zip(below) {
                    *sum += u * weight;
                }
            }
            let block = &mut value[m..end];
            if m > last {
                block.iter_mut().for_each(|u| *u = (absorbed[last] + *u) * wait[last]);
            } else {
                block.iter_mut().zip(m..).for_each(|(u, m)| *u = solved(m, *u));
            }
            m = end;
        }
    } else {
        // So far value[m] has gathered the kernel's terms of what lies below.
        for m in 1..=4 * cells.len() {
            let u = solved(m, value[m]);
            value[m] = u;
            for (above, weight) in value[m + 1..].iter_mut().zip(&kernel[1..]) {
                *above += u * weight;
            }
        }
    }
}

#[cfg(test)]
mod tests {
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

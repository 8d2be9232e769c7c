//! *Equation*: the renewal equation on a grid, solved from small holes to large.
//!
//! Where sizes are few, few terms are not zero. Where they are many, every term counts, but the
//! grid is coarse. Either way a solution costs a few microseconds.

use super::traffic::{FEW_CELLS, GRID, GridCell};

/// The discount of waiting: the weight of a hole's value after a request that does not fit.
pub(super) const GAMMA: f32 = 0.7;

/// Solves the renewal equation on the grid of `cells`, up to four times its length. `value` is
/// longer than that by one more, and zero.
pub(super) fn solve(cells: &[GridCell], requests: f32, few: bool, value: &mut [f32]) {
    let equation = RenewalEquation::new(cells, requests);
    if few { equation.solve_few(value) } else { equation.solve_many(value) }
}

/// The coefficients of the equation.
struct RenewalEquation {
    /// `kernel[k]` is the total weight of U(m − k).
    kernel: [f32; GRID + 1],
    /// By point: the bytes that a request that fits absorbs at once, and the factor for a wait.
    absorbed: [f32; GRID],
    wait: [f32; GRID],
    /// Number of cells.
    len: usize,
}

impl RenewalEquation {
    #[inline(always)]
    fn new(cells: &[GridCell], requests: f32) -> Self {
        // With s between two points, U(m − s) is a mixture of U(m − cell) and U(m − cell − 1). U(m)
        // itself is on both sides of the equation if sizes below one step occur.
        let mut kernel = [0.0f32; GRID + 1];
        let share = requests.recip();
        for (j, cell) in cells.iter().enumerate() {
            let beyond = (cell.sum - cell.requests * j as f32) * share;
            kernel[j] += cell.requests * share - beyond;
            kernel[j + 1] += beyond;
        }
        let mut absorbed = [0.0; GRID];
        let mut wait = [0.0; GRID];
        let (mut fits, mut bytes) = (0.0, 0.0);
        for (i, cell) in cells.iter().enumerate() {
            fits += cell.requests * share;
            bytes += cell.sum * share;
            (absorbed[i], wait[i]) =
                (bytes, (1.0 - GAMMA * (1.0 - fits) - kernel[0]).max(1e-6).recip());
        }
        RenewalEquation { kernel, absorbed, wait, len: cells.len() }
    }

    /// Returns U(m), from the kernel's terms of what lies below. From the largest size on,
    /// everything fits.
    #[inline(always)]
    fn solved(&self, m: usize, gathered: f32) -> f32 {
        let point = (m - 1).min(self.len - 1);
        (self.absorbed[point] + gathered) * self.wait[point]
    }

    /// Solves the equation where few terms are not zero. Each point needs only those that lie one
    /// of a few steps below: a block as long as the shortest step can be gathered at once.
    #[inline(always)]
    fn solve_few(&self, value: &mut [f32]) {
        let kernel = &self.kernel[..self.len + 1];
        let mut steps = [(0, 0.0); 2 * FEW_CELLS];
        let mut len = 0;
        for (k, &weight) in kernel.iter().enumerate().skip(1).filter(|(_, weight)| **weight != 0.0)
        {
            steps[len] = (k, weight);
            len += 1;
        }
        let steps = &steps[..len];
        let (points, last) = (4 * self.len, self.len - 1);
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
                let (absorbed, wait) = (self.absorbed[last], self.wait[last]);
                block.iter_mut().for_each(|u| *u = (absorbed + *u) * wait);
            } else {
                block.iter_mut().zip(m..).for_each(|(u, m)| *u = self.solved(m, *u));
            }
            m = end;
        }
    }

    /// Solves the equation where every term counts.
    #[inline(always)]
    fn solve_many(&self, value: &mut [f32]) {
        let kernel = &self.kernel[..self.len + 1];
        // So far value[m] has gathered the kernel's terms of what lies below.
        for m in 1..=4 * self.len {
            let u = self.solved(m, value[m]);
            value[m] = u;
            for (above, weight) in value[m + 1..].iter_mut().zip(&kernel[1..]) {
                *above += u * weight;
            }
        }
    }
}

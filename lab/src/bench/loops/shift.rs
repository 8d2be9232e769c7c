//! A change of model: one object size replaces another.
//!
//! The pool is first filled and churned with size A under random eviction. Then, over two and a
//! half turnovers of the pool (a turnover is requests that add up to its size), the share of
//! requests for size B rises linearly from none to all; afterwards all requests are for B. Objects
//! of A are freed only when random eviction selects them. Some therefore remain for several
//! turnovers, and holes of one size must serve the other.
//!
//! The figures are means of the utilization after each request: during the change, between one and
//! two turnovers after its end, and between ten and twenty; and the smallest sample since the start
//! of the change.
//!
//! The length of the change determines how many objects of A are left when the figures are taken.
//! Over one turnover, exact best fit reaches 0.866 one to two turnovers after the change; over two
//! and a half 0.886; over four 0.896 (mean of the five ratios). Two and a half agree with the known
//! figures of the published allocator (0.856) and of best fit (0.887).

use kvmem_testkit::workload::stream;
use rand::RngExt;

use super::{LoopError, REQUESTS, VICTIMS};
use crate::bench::contender::{Contender, Space};
use crate::bench::live_set::LiveSet;

/// The ratios B/A of the workload.
pub const RATIOS: [f64; 5] = [0.3, 0.7, 1.1, 1.4, 2.3];
/// Size A.
pub const SIZE_A: u64 = 2 << 20;
/// The pool: thousands of objects, so the size of a single object does not matter.
pub const POOL: u64 = 8 << 30;
/// Turnovers of the change.
pub const CHANGE: f64 = 2.5;

/// The parameters of the change.
#[derive(Clone, Copy, Debug)]
pub struct ShiftPlan {
    /// Size before.
    pub a: u64,
    /// Size after.
    pub b: u64,
    /// Bytes of the pool.
    pub pool: u64,
    /// Turnovers of A before the change.
    pub warm_up: f64,
    /// Turnovers during which B replaces A.
    pub change: f64,
    /// Turnovers after the change.
    pub after: f64,
}

impl ShiftPlan {
    /// Returns the change of the workload, with B = `ratio` · A.
    pub fn standard(ratio: f64) -> Self {
        let b = (SIZE_A as f64 * ratio) as u64;
        Self { a: SIZE_A, b, pool: POOL, warm_up: 5.0, change: CHANGE, after: 20.0 }
    }
}

/// The figures of the loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShiftOutcome {
    /// Mean during the change.
    pub during: f64,
    /// Smallest sample since the start of the change.
    pub min: f64,
    /// Mean from one to two turnovers after the change.
    pub early: f64,
    /// Mean from ten to twenty turnovers after the change.
    pub late: f64,
}

/// A running mean.
#[derive(Default)]
struct Mean {
    sum: u128,
    n: u64,
}

impl Mean {
    fn add(&mut self, bytes: u64) {
        self.sum += u128::from(bytes);
        self.n += 1;
    }

    fn share(&self, pool: u64) -> Result<f64, LoopError> {
        if self.n == 0 {
            return Err(LoopError::NoSamples);
        }
        Ok(self.sum as f64 / self.n as f64 / pool as f64)
    }
}

/// Runs the change.
pub fn run<C: Contender>(seed: u64, plan: ShiftPlan) -> Result<ShiftOutcome, LoopError> {
    let ShiftPlan { a, b, pool, warm_up, change, after } = plan;
    let space = Space::for_sizes_from(a.min(b), pool);
    let mut live = LiveSet::new(C::create(space)?, space.max_live, stream(seed, VICTIMS));
    let mut requests = stream(seed, REQUESTS);
    let mut requested = 0;
    while (requested as f64) < warm_up * pool as f64 {
        live.put(a)?;
        requested += a;
    }
    let (mut during, mut early, mut late) = (Mean::default(), Mean::default(), Mean::default());
    let mut min = u64::MAX;
    requested = 0;
    loop {
        // Turnovers since the end of the change; negative while it lasts.
        let turnovers = requested as f64 / pool as f64 - change;
        if turnovers >= after {
            break;
        }
        let share_b = 1.0 + turnovers / change;
        let size = if share_b >= 1.0 || requests.random::<f64>() < share_b { b } else { a };
        live.put(size)?;
        requested += size;
        let bytes = live.bytes();
        min = min.min(bytes);
        if turnovers < 0.0 {
            during.add(bytes);
        } else if (1.0..2.0).contains(&turnovers) {
            early.add(bytes);
        } else if (10.0..20.0).contains(&turnovers) {
            late.add(bytes);
        }
    }
    Ok(ShiftOutcome {
        during: during.share(pool)?,
        min: min as f64 / pool as f64,
        early: early.share(pool)?,
        late: late.share(pool)?,
    })
}

//! A change of model: one object size replaces another.
//!
//! The pool is first filled and churned with size A under random eviction. Then, over two and a
//! half turnovers of the pool (a turnover is requests that add up to its size), the share of
//! requests for size B rises linearly from none to all; afterwards all requests are for B. Objects
//! of A are freed only when random eviction selects them. Some therefore remain for several
//! turnovers, and holes of one size must serve the other.
//!
//! The figures are means of the utilization after each request: during the change, between one and
//! two turnovers after its end, and between ten and twenty.
//!
//! The length of the change determines how many objects of A are left when the figures are taken.
//! Over one turnover, exact best fit reaches 0.866 one to two turnovers after the change; over two
//! and a half 0.886; over four 0.896 (mean of the five ratios). Two and a half agree with the known
//! figures of the published allocator (0.856) and of best fit (0.887).

use anyhow::{Result, ensure};
use kvmem_testkit::workload::stream;
use rand::RngExt;

use super::{REQUESTS, VICTIMS};
use crate::bench::contender::{Contender, Space};
use crate::bench::live_set::LiveSet;

/// The ratios B/A of the workload.
pub const RATIOS: [f64; 5] = [0.3, 0.7, 1.1, 1.4, 2.3];
/// Size A.
const SIZE_A: u64 = 2 << 20;
/// The pool: thousands of objects, so the size of a single object does not matter.
const POOL: u64 = 8 << 30;
/// Turnovers of A before the change, of the change, and after it.
const TURNOVERS: (f64, f64, f64) = (5.0, 2.5, 20.0);

/// A running mean.
#[derive(Clone, Copy, Default)]
struct Mean {
    sum: u128,
    n: u64,
}

/// Replaces size A by B = `ratio` · A. Returns the mean utilization during the change, from one to
/// two turnovers after it, and from ten to twenty.
pub fn run<C: Contender>(seed: u64, ratio: f64) -> Result<[f64; 3]> {
    let (a, b) = (SIZE_A, (SIZE_A as f64 * ratio) as u64);
    let (warm_up, change, after) = TURNOVERS;
    let space = Space::for_sizes_from(a.min(b), POOL);
    let mut live = LiveSet::new(C::create(space)?, space.max_live, stream(seed, VICTIMS));
    let mut requests = stream(seed, REQUESTS);
    let mut requested = 0;
    while (requested as f64) < warm_up * POOL as f64 {
        live.put(a)?;
        requested += a;
    }
    let mut means = [Mean::default(); 3];
    requested = 0;
    loop {
        // Turnovers since the end of the change; negative while it lasts.
        let turnovers = requested as f64 / POOL as f64 - change;
        if turnovers >= after {
            break;
        }
        let share_b = 1.0 + turnovers / change;
        let size = if share_b >= 1.0 || requests.random::<f64>() < share_b { b } else { a };
        live.put(size)?;
        requested += size;
        let of = [f64::NEG_INFINITY..0.0, 1.0..2.0, 10.0..20.0];
        if let Some(of) = of.iter().position(|of| of.contains(&turnovers)) {
            means[of].sum += u128::from(live.bytes());
            means[of].n += 1;
        }
    }
    ensure!(means.iter().all(|mean| mean.n > 0), "the loop ended without a sample");
    Ok(means.map(|mean| mean.sum as f64 / mean.n as f64 / POOL as f64))
}

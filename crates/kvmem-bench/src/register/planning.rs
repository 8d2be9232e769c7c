//! *Planning*: the time to plan the registration of a large region.

use std::time::Instant;

use kvmem::arena::{PageSize, Populate, Region};
use kvmem::register::{Limits, PlanOptions, Policy, plan};

use crate::stats::median;

/// Bytes and registrars of the timed plan.
const PLANNED: usize = 1 << 40;
const PLANNED_FOR: usize = 8;
/// Plans made; their median counts.
const PLANS: usize = 25;

/// Measures the milliseconds to plan a region of 1 TiB for 8 registrars with the limits of rings.
/// `None` if no region of that size can be mapped.
pub(super) fn plan_ms() -> Option<f64> {
    let region =
        Region::builder(PLANNED).ladder(PageSize::Thp).populate(Populate::None).map().ok()?;
    let limits: Vec<Limits> = (0..PLANNED_FOR)
        .map(|number| {
            let ring = Limits::none(format!("io_uring:{number}"));
            Limits {
                max_bytes: 1 << 30,
                max_keys: 16_384,
                preferred_chunk_bytes: Some(256 << 20),
                ..ring
            }
        })
        .collect();
    let options = PlanOptions::new(Policy::Auto, PLANNED_FOR);
    let mut seen = Vec::new();
    for _ in 0..PLANS {
        let start = Instant::now();
        let plan = plan(region.receipt(), &limits, &options).ok()?;
        seen.push(start.elapsed().as_secs_f64() * 1e3);
        drop(plan);
    }
    median(seen)
}

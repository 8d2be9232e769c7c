//! *Planner*: makes a plan of memory, limits and options.

use super::admission::{check_edges, check_keys, check_memlock, check_names};
use super::chunks::{boundary, max_chunk_bytes, merge, steps};
use super::layout::MemoryLayout;
use super::plan::{DevicePlan, Estimate, Plan};
use super::policy::{PlanOptions, Policy};
use super::strategy::CallStrategy;
use crate::arena::{PageSize, Populate, Receipt};
use crate::register::{Limits, RegisterError};

/// Plans how to register a region with this receipt. Queries nothing and has no side effects.
///
/// The receipt describes the residency at the time of mapping. A builder's
/// [`plan`](crate::register::RegistrationBuilder::plan) queries the current residency. It also
/// handles parts of regions and foreign memory, which may begin at any address.
///
/// Takes time in proportion to the number of chunks: some 100 µs for 1 TiB and eight rings.
///
/// ```
/// use kvmem::arena::Region;
/// use kvmem::register::{Limits, Policy, PlanOptions, plan};
///
/// let region = Region::builder(1 << 30).map()?;
/// let nics = ["mlx5_0", "mlx5_1"].map(|nic| Limits { max_bytes: 256 << 20, ..Limits::none(nic) });
/// let plan = plan(region.receipt(), &nics, &PlanOptions::new(Policy::Auto, 2))?;
/// assert_eq!(plan.devices[1].chunks.len(), 4);
/// assert_eq!(plan.devices[1].chunks[3], 768 << 20..1 << 30);
/// assert_eq!(plan.boundary_bytes, Some(256 << 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`NoRegistrars`](RegisterError::NoRegistrars), [`SameName`](RegisterError::SameName),
/// [`Empty`](RegisterError::Empty), and [`Limited`](RegisterError::Limited) if a known limit is too
/// small. Planning reports that before minutes of populating are spent.
pub fn plan(
    receipt: &Receipt,
    limits: &[Limits],
    options: &PlanOptions,
) -> Result<Plan, RegisterError> {
    MemoryLayout::from_receipt(receipt).plan(limits, options)
}

impl MemoryLayout {
    /// Plans how to register this memory; see [`plan`].
    pub(in crate::register) fn plan(
        &self,
        limits: &[Limits],
        options: &PlanOptions,
    ) -> Result<Plan, RegisterError> {
        check_names(limits)?;
        if self.len == 0 {
            return Err(RegisterError::Empty);
        }
        check_memlock(limits, self.len as u64)?;
        let chunk = options.chunk_bytes.unwrap_or(u64::MAX).min(self.len as u64);
        check_edges(limits, chunk)?;
        let caps: Vec<u64> = limits.iter().map(|limits| max_chunk_bytes(limits, options)).collect();
        for (limits, cap) in limits.iter().zip(&caps) {
            check_keys(limits, (self.len as u64).div_ceil(*cap))?;
        }
        let ends = self.chunk_ends(caps.iter().copied().min().unwrap_or(u64::MAX));
        let devices = limits.iter().zip(&caps).map(|(limits, cap)| {
            let plan = DevicePlan { device: limits.device.clone(), chunks: merge(&ends, *cap) };
            check_keys(limits, plan.chunks.len() as u64).map(|()| plan)
        });
        let devices = devices.collect::<Result<Vec<DevicePlan>, RegisterError>>()?;

        let absent = self.absent_ranges();
        let populates = options.policy != Policy::Sequential && options.populate != Populate::None;
        let populate_threads = match options.populate {
            _ if absent.is_empty() || !populates => 0,
            Populate::Threads(threads) => threads.get().min(options.cores.max(1)),
            _ => options.cores.max(1),
        };
        let untouched = populate_threads == 0 && !absent.is_empty();
        let (strategy, max_threads) = CallStrategy::choose(
            options,
            &[&devices],
            self.len as u64,
            untouched,
            self.min_slice_bytes(),
        );
        Ok(Plan {
            len_bytes: self.len as u64,
            resident_bytes: self.resident_bytes(),
            policy: options.policy,
            populate: if populate_threads > 0 { absent } else { Vec::new() },
            populate_threads,
            steps: steps(&ends, options.by_range),
            threads: strategy.threads,
            calibration: strategy.calibration,
            boundary_bytes: boundary(&ends),
            estimate: self.estimate(devices.len(), max_threads, populate_threads),
            devices,
        })
    }

    fn estimate(&self, devices: usize, threads: usize, populate_threads: usize) -> Estimate {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let (mut absent, mut register) = (0.0, 0.0);
        for segment in &self.segments {
            let len = segment.range.len() as u64;
            absent += gib(len - segment.resident_bytes.min(len)) * populate_ms(segment.page) / 1e3;
            register += gib(len) * register_ms(segment.page) / 1e3 * devices as f64;
        }
        // Pages that are not populated beforehand are faulted in by the first registrar.
        let (populate, fault_in) = if populate_threads > 0 {
            (absent / populate_threads as f64, 0.0)
        } else {
            (0.0, absent)
        };
        Estimate {
            populate_seconds: populate,
            sequential_seconds: register + fault_in,
            parallel_seconds: register / threads as f64 + fault_in,
        }
    }
}

// Rough durations, for estimates: measured with eight rings on a virtual machine with two cores of
// an EPYC. Other machines and devices differ by factors. An estimate distinguishes seconds from
// minutes; no decision depends on it.

/// Returns the milliseconds in which one thread makes a GiB resident.
pub(super) fn populate_ms(page: PageSize) -> f64 {
    if page == PageSize::Base { 320.0 } else { 44.0 }
}

/// Returns the milliseconds in which one registrar registers a GiB that is resident.
pub(super) fn register_ms(page: PageSize) -> f64 {
    if page == PageSize::Base { 22.0 } else { 1.2 }
}

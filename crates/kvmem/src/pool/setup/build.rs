//! *Build*: makes one layer after the other. If one fails, the layers made before it are dropped,
//! and nothing is left.
//!
//! Failures that can be predicted are checked first: a limit that registering will exceed is
//! reported before minutes of populating.

use std::sync::Arc;
use std::time::Instant;

use super::PoolBuilder;
use super::partition::{Partition, PartitionOptions, wanted};
use crate::arena::{HumanBytes, Populate, Receipt, Region};
use crate::offset::OffsetAllocator;
use crate::pool::blocks::{self, PoolMemory};
use crate::pool::observe::Latency;
use crate::pool::owner::{Owner, PoolLayout};
use crate::pool::provision::{Placeholder, Provisioner, Provisioning, listening};
use crate::pool::{InitOn, Pool, PoolError, PoolReport, PoolSize, ReportedChoice, Step};
use crate::register::{self, Limits};
use crate::slab::{ExtentBuilder, ExtentCache};
use crate::sys;
use crate::trace::{TraceContext, span};

impl Pool {
    /// Returns a builder of a pool of at least this size.
    pub fn builder(size: impl Into<PoolSize>) -> PoolBuilder {
        PoolBuilder::new(size.into())
    }
}

impl PoolBuilder {
    /// Builds the pool: maps the memory, populates it, and registers chunks while later ones are
    /// populated. Takes as long as the kernel needs to clear and pin that much memory; in the
    /// background, the time of about ten system calls.
    ///
    /// # Errors
    /// [`PoolError`] names the layer that failed, the reason, and the remedy. Nothing is left
    /// behind.
    pub fn build(self) -> Result<Pool, PoolError> {
        build(&self)
    }
}

/// Makes the layers from the bottom up. Long, because the report has a value of every step.
fn build(options: &PoolBuilder) -> Result<Pool, PoolError> {
    let (requested, max) = sizes(options)?;
    let limits: Vec<Limits> =
        options.provision.registrars.iter().map(|registrar| registrar.limits()).collect();
    check(options, requested, &limits)?;

    let by_part = options.in_background || options.quarantine;
    let grows = max > requested;
    // Registrars register the beginning while the rest is populated.
    let at_once = !by_part && !grows && limits.is_empty();
    let mut steps = Vec::new();
    span!(INFO, "build", pool = &*options.provision.name, bytes = max, registrars = limits.len());
    let region = timed("map", &mut steps, || map(options, max, at_once))?;
    let mut receipt = region.receipt().clone();
    let partition = PartitionOptions {
        requested: requested as u64,
        receipt: &receipt,
        limits: &limits,
        boundary: options.boundary,
        by_part,
        grows,
    };
    let Partition { part_bytes, unit, boundary, choice } = partition.partition()?;
    let mapped = region.len();
    let capacity =
        if grows { requested.next_multiple_of(unit as usize).min(mapped) } else { mapped };

    let provisioner = Provisioner::new(&options.provision, part_bytes);
    provisioner.set_up.populated_in(receipt.ranges.iter().map(|range| range.seconds).sum());
    if options.init_on != InitOn::Never {
        // A forked child must not touch the memory, which it does not have.
        sys::count_forks();
    }
    let file = region.file_number()?;
    let memory = Arc::new(PoolMemory::new(region, part_bytes, file)?);
    let (mut populated, mut registered) = (None, None);
    if !by_part && !at_once {
        let what = if limits.is_empty() { "populate" } else { "register" };
        let done = timed(what, &mut steps, || {
            provisioner.provision(&memory, 0..capacity).map_err(|(_, error)| error)
        });
        (populated, registered) = done?;
        if options.provision.populate != Populate::None {
            let found = memory.parts()[0].region.populated_receipt(options.ladder.strict);
            receipt = found.map_err(|error| options.provision.failed(error))?;
        }
    }
    let space = offsets(options, capacity as u64, boundary).build()?;
    // SAFETY: the space was just built. Its capacity is at most the length of the memory, and
    // `Pool::grow_to`, the only function that lengthens it, keeps it so.
    unsafe { blocks::attach(&space, &memory) };

    let report = PoolReport {
        requested_bytes: requested as u64,
        capacity_bytes: capacity as u64,
        max_bytes: mapped as u64,
        ready_bytes: 0,
        part_bytes: part_bytes as u64,
        boundary_bytes: boundary,
        devices: limits.iter().map(|limits| limits.device.clone()).collect(),
        choices: describe(choice, &receipt, options),
        receipt,
        populated,
        registered,
        hot_sizes: options.hot_sizes.clone(),
        steps,
        quarantined: Vec::new(),
        stopped: None,
    };
    assemble(options, space, memory, provisioner, report, unit)
}

/// Returns the size of the pool and the size up to which it can grow, in bytes.
fn sizes(options: &PoolBuilder) -> Result<(usize, usize), PoolError> {
    let requested = options.size.bytes()?;
    let max = options.max_size.as_ref().map_or(Ok(requested), |size| size.bytes())?;
    if max < requested {
        return Err(PoolError::Limit { requested: requested as u64, max: max as u64 });
    }
    Ok((requested, max))
}

/// Joins the layers in a pool, and provisions it if it is provisioned part by part.
fn assemble(
    options: &PoolBuilder,
    space: ExtentCache,
    memory: Arc<PoolMemory>,
    provisioner: Provisioner,
    report: PoolReport,
    unit: u64,
) -> Result<Pool, PoolError> {
    let by_part = options.in_background || options.quarantine;
    let placeholders =
        if by_part { Placeholder::all(&space, report.part_bytes)? } else { Vec::new() };
    if let Some(hooks) = options.init_on.hooks() {
        // After the placeholders are made: the memory of their parts must not be touched yet.
        // SAFETY: memory was attached to the space, which keeps it as long as any block exists.
        unsafe { space.set_hooks(hooks) };
    }
    let plan = PoolLayout {
        unit,
        registered: !report.devices.is_empty(),
        in_background: options.in_background,
    };
    let provisioning = Arc::new(Provisioning::new(
        Arc::clone(&memory),
        provisioner,
        placeholders,
        report.capacity_bytes,
    ));
    let owner = Owner::new(Arc::clone(&provisioning), plan, report);
    let latency =
        (options.measure_one_in > 0).then(|| Arc::new(Latency::new(options.measure_one_in)));
    let pool = Pool::new(space, memory, Arc::new(owner), latency);
    if options.in_background {
        let here = TraceContext::now();
        let thread = sys::spawn("kvmem-pool", move || here.run(|| provisioning.run()));
        pool.owner().set_thread(thread.map_err(|errno| PoolError::NoThread { errno })?);
    } else if by_part {
        provisioning.run();
        if let Some(error) = provisioning.take_failure() {
            return Err(error);
        }
    }
    Ok(pool)
}

/// Returns the errors that can be predicted, before anything is mapped.
fn check(options: &PoolBuilder, requested: usize, limits: &[Limits]) -> Result<(), PoolError> {
    if requested == 0 {
        return Err(crate::arena::ArenaError::ZeroSize.into());
    }
    let boundary = options.boundary.filter(|boundary| *boundary < requested as u64);
    offsets(options, requested as u64, boundary).build()?;
    if !limits.is_empty() {
        let part = options.boundary.into_iter().chain(wanted(limits).map(|(bytes, _)| bytes)).min();
        let admitted = register::admit(limits, requested as u64, part.unwrap_or(u64::MAX));
        admitted.map_err(|error| options.provision.failed(error))?;
    }
    Ok(())
}

/// Maps `max` bytes.
fn map(options: &PoolBuilder, max: usize, populate: bool) -> Result<Region, PoolError> {
    let mut builder = Region::builder(max)
        .ladder(options.ladder.clone())
        .numa(options.numa.clone())
        .backing(options.backing)
        .readers_only(options.readers_only)
        .guard_pages(options.guard_pages)
        .populate(options.provision.populate)
        .cancel(options.provision.cancel.clone());
    if !populate && options.provision.populate != Populate::None {
        builder = builder.populate_later();
    }
    if let Some(listener) = options.provision.on_populate.clone() {
        builder = builder.progress(move |progress| listening(|| listener(progress)));
    }
    builder.map().map_err(|error| options.provision.failed(error))
}

fn offsets(options: &PoolBuilder, capacity: u64, boundary: Option<u64>) -> ExtentBuilder {
    let mut space = OffsetAllocator::builder(capacity);
    if let Some(bytes) = boundary {
        space = space.boundary(bytes);
    }
    let space = ExtentCache::builder(space)
        .hot_sizes(options.hot_sizes.iter().copied())
        .auto_hot_sizes(options.auto_hot_sizes);
    match options.max_cached_bytes {
        Some(bytes) => space.max_cached_bytes(bytes),
        None => space,
    }
}

fn timed<T>(
    what: &str,
    steps: &mut Vec<Step>,
    run: impl FnOnce() -> Result<T, PoolError>,
) -> Result<T, PoolError> {
    let start = Instant::now();
    let done = run()?;
    steps.push(Step { what: what.to_owned(), seconds: start.elapsed().as_secs_f64() });
    Ok(done)
}

/// Returns the choices that the pool made, for its report.
fn describe(
    boundary: ReportedChoice,
    receipt: &Receipt,
    options: &PoolBuilder,
) -> Vec<ReportedChoice> {
    let mut choices =
        vec![boundary, describe_pages(receipt, options), describe_provisioning(options)];
    if options.init_on != InitOn::Never {
        let (what, why) = ("init on".to_owned(), "requested; bytes are set to zero".to_owned());
        choices.push(ReportedChoice { what, chosen: options.init_on.to_string(), why });
    }
    choices
}

fn describe_pages(receipt: &Receipt, options: &PoolBuilder) -> ReportedChoice {
    let got: Vec<String> = receipt
        .ranges
        .iter()
        .map(|range| {
            format!("{} in {} pages", HumanBytes(range.range.len() as u64), range.obtained)
        })
        .collect();
    let fell: Vec<String> =
        receipt.ranges.iter().flat_map(|range| &range.fallbacks).map(ToString::to_string).collect();
    let why = match fell.len() {
        0 => format!("the first rung of {} took all of it", Rungs(&options.ladder.rungs)),
        _ => fell.join("; "),
    };
    ReportedChoice { what: "pages".to_owned(), chosen: got.join(", "), why }
}

fn describe_provisioning(options: &PoolBuilder) -> ReportedChoice {
    let (chosen, why) = match (options.in_background, options.quarantine) {
        (true, _) => ("in the background", "requested; parts that fail are quarantined"),
        (false, true) => ("part by part", "parts that fail are to be quarantined"),
        (false, false) => ("at once", "all of it or nothing"),
    };
    ReportedChoice { what: "ready".to_owned(), chosen: chosen.to_owned(), why: why.to_owned() }
}

struct Rungs<'a>(&'a [crate::arena::PageSize]);

impl std::fmt::Display for Rungs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&names.join(","))
    }
}

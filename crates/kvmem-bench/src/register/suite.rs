//! Runs the plan.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use kvmem::arena::{PageSize, Populate, Region};
use kvmem::register::{Limits, PlanOptions, Policy, plan};
use kvmem_testkit::workload::stream;
use rand::seq::SliceRandom;

use super::ballast::Ballast;
use super::fixture::GroupFixture;
use super::measure::{RegisterSample, measure};
use super::plan::{Cell, RegisterEffort, RegisterGroup, Resources, contenders, groups};
use super::report::{RegisterReport, RegisterRow, RegisterSkipped};
use super::{
    Pages, RegisterBenchError, RegisterContenderId, RegisterMeasureError, RegisterOptions, goals,
};
use crate::arena::mapping;
use crate::hugepages::Hugepages;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::stats::median;

/// Bytes and registrars of the timed plan.
const PLANNED: usize = 1 << 40;
const PLANNED_FOR: usize = 8;
/// Seed of the order in which contenders take turns.
const SEED: u64 = 1;
/// Plans made; their median counts.
const PLANS: usize = 25;

pub(super) fn run(
    options: &RegisterOptions,
    progress: &mut dyn Progress<RegisterRow>,
) -> Result<RegisterReport, RegisterBenchError> {
    let start = Instant::now();
    let effort = RegisterEffort::of(options);
    let contenders = contenders(options);
    let (groups, skipped) = groups(options, &Resources::here());
    progress.begin(groups.iter().map(|group| group.units(contenders.len(), &effort)).sum());
    let mut results = RegisterResults {
        borrow_hugepages: options.borrow_hugepages,
        contenders,
        effort,
        rows: Vec::new(),
        skipped,
    };
    for group in &groups {
        let units = Units { remaining: group.units(results.contenders.len(), &effort) };
        results.add(group, units, progress)?;
    }
    let plan_ms = plan_ms();
    let goals = goals::of(&results.rows, plan_ms);
    Ok(RegisterReport {
        suite: "register".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        quick: options.quick,
        reps: effort.reps,
        machine: Machine::here(),
        seconds: start.elapsed().as_secs_f64(),
        rows: results.rows,
        plan_ms,
        skipped: results.skipped,
        goals,
    })
}

/// Measures the milliseconds to plan a region of 1 TiB for 8 registrars with the limits of rings.
/// `None` if no region of that size can be mapped.
fn plan_ms() -> Option<f64> {
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
    let terms = PlanOptions::new(Policy::Auto, PLANNED_FOR);
    let mut seen = Vec::new();
    for _ in 0..PLANS {
        let start = Instant::now();
        let plan = plan(region.receipt(), &limits, &terms).ok()?;
        seen.push(start.elapsed().as_secs_f64() * 1e3);
        drop(plan);
    }
    median(seen)
}

/// Announced units of work of a group that are not yet reported as done.
struct Units {
    remaining: u64,
}

impl Units {
    fn advance(&mut self, units: u64, progress: &mut dyn Progress<RegisterRow>) {
        let units = units.min(self.remaining);
        self.remaining -= units;
        progress.advance(units);
    }
}

/// The results of the groups so far.
struct RegisterResults {
    borrow_hugepages: bool,
    contenders: Vec<RegisterContenderId>,
    effort: RegisterEffort,
    rows: Vec<RegisterRow>,
    skipped: Vec<RegisterSkipped>,
}

impl RegisterResults {
    fn add(
        &mut self,
        group: &RegisterGroup,
        mut units: Units,
        progress: &mut dyn Progress<RegisterRow>,
    ) -> Result<(), RegisterBenchError> {
        match self.group(group, &mut units, progress) {
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Limited(reason)) => self.skipped.push(group.skipped(None, reason)),
            Ok(()) => {}
        }
        units.advance(u64::MAX, progress);
        Ok(())
    }

    /// Records a skipped row once, even if it holds for resident memory and for other.
    fn skip(&mut self, skipped: RegisterSkipped) {
        if !self.skipped.contains(&skipped) {
            self.skipped.push(skipped);
        }
    }

    /// Measures the cells of `group`.
    fn group(
        &mut self,
        group: &RegisterGroup,
        units: &mut Units,
        progress: &mut dyn Progress<RegisterRow>,
    ) -> Result<(), Stop> {
        if self.contenders.is_empty() || group.cells.is_empty() {
            return Ok(());
        }
        let first = (group.cells[0], self.contenders[0]);
        let stop = |error| Stop::of(error, first);
        let fixture = GroupFixture::open(group).map_err(stop)?;
        // Reported once if it holds for all cells: a cell without a reason sorts first.
        let reasons = group.cells.iter().map(|cell| fixture.too_little_memlock(cell));
        if let Some(reason) = reasons.min().flatten() {
            return Err(Stop::Limited(reason));
        }
        let _hugepages = match group.pages {
            Some(Pages::Huge) => {
                let pages = Hugepages::provide(group.region_bytes, self.borrow_hugepages);
                Some(pages.map_err(Stop::Limited)?)
            }
            _ => None,
        };
        progress.step(&format!("{}: memory", first.0));
        if group.pages == Some(Pages::Huge) {
            // Pages of a pool stay backed by the host.
            mapping::map_populate(Pages::Huge, group.region_bytes as usize)
                .map_err(|error| stop(error.into()))?;
        }
        let mut resident = None;
        let mut ballast = None;
        for cell in &group.cells {
            if let Some(reason) = fixture.too_little_memlock(cell) {
                self.skip(group.skipped(Some(cell.contexts), reason));
                continue;
            }
            // Cells that are resident beforehand come first and share one region.
            if cell.resident && resident.is_none() {
                resident = Some(fixture.region(true).map_err(stop)?);
            } else if !cell.resident {
                resident = None;
                if cell.pages == Some(Pages::Base) && ballast.is_none() {
                    // A quarter more than a run needs: other processes take from it too.
                    progress.step(&format!("{cell}: memory"));
                    let bytes = cell.region_bytes / 4 * 5;
                    ballast = Some(
                        Ballast::new(bytes).map_err(|error| Stop::Limited(error.to_string()))?,
                    );
                }
            }
            match self.cell(cell, &fixture, resident.as_ref(), units, progress) {
                Err(Stop::Limited(reason)) => self.skip(group.skipped(Some(cell.contexts), reason)),
                result => result?,
            }
        }
        Ok(())
    }

    /// Measures the contenders in `cell` in turns and adds a row for each.
    fn cell(
        &mut self,
        cell: &Cell,
        fixture: &GroupFixture,
        resident: Option<&Arc<Region>>,
        units: &mut Units,
        progress: &mut dyn Progress<RegisterRow>,
    ) -> Result<(), Stop> {
        let count = self.contenders.len();
        let each = cell.units(1, &self.effort) / (u64::from(self.effort.reps) + 1);
        let mut samples: Vec<Vec<RegisterSample>> = vec![Vec::new(); count];
        let mut order: Vec<usize> = (0..count).collect();
        let mut shuffles = stream(SEED, self.rows.len() as u64);
        let mut start = Instant::now();
        let rounds =
            1 + if cell.backend.is_simulated() { self.effort.reps } else { self.effort.max_reps };
        for round in 0..rounds as usize {
            if round == 1 {
                start = Instant::now();
            }
            if round > self.effort.reps as usize && start.elapsed() > self.effort.budget {
                break;
            }
            order.shuffle(&mut shuffles);
            let turns = if round == 0 { count.min(self.effort.warm) } else { count };
            for &turn in &order[..turns] {
                let contender = self.contenders[turn];
                progress.step(&format!("{cell}: {contender}"));
                let failed = |error| Stop::of(error, (*cell, contender));
                if !cell.resident && matches!(cell.pages, Some(Pages::Base | Pages::Thp)) {
                    // Fetches from the host the memory that the run is about to take.
                    drop(fixture.region(true).map_err(failed)?);
                }
                let one = run_once(contender, cell, fixture, resident).map_err(failed)?;
                // The first round does not count.
                if round > 0 {
                    samples[turn].push(one);
                }
                if round <= self.effort.reps as usize {
                    units.advance(each, progress);
                }
            }
        }
        for (contender, samples) in self.contenders.iter().zip(&samples) {
            if let Some(row) = row(cell, *contender, samples) {
                progress.row(&row);
                self.rows.push(row);
            }
        }
        Ok(())
    }
}

/// The reason why a group or a cell ends early.
enum Stop {
    /// A limit of this machine.
    Limited(String),
    /// A contender failed at an operation that should succeed here.
    Failed(RegisterBenchError),
}

impl Stop {
    fn of(error: RegisterMeasureError, (cell, contender): (Cell, RegisterContenderId)) -> Self {
        match error {
            RegisterMeasureError::Limited(_) | RegisterMeasureError::System(_) => {
                Stop::Limited(error.to_string())
            }
            error => Stop::Failed(RegisterBenchError { cell: cell.to_string(), contender, error }),
        }
    }
}

fn run_once(
    contender: RegisterContenderId,
    cell: &Cell,
    group: &GroupFixture,
    resident: Option<&Arc<Region>>,
) -> Result<RegisterSample, RegisterMeasureError> {
    let fixture = group.for_run(cell);
    match resident {
        Some(region) => measure(contender, &fixture, region),
        None => measure(contender, &fixture, &group.region(cell.resident)?),
    }
}

/// Returns the medians of the samples; `None` if there is none.
fn row(
    cell: &Cell,
    policy: RegisterContenderId,
    samples: &[RegisterSample],
) -> Option<RegisterRow> {
    let of = |figure: fn(&RegisterSample) -> f64| median(samples.iter().map(figure).collect());
    let calibration = |figure: fn((f64, f64)) -> f64| {
        median(samples.iter().filter_map(|one| one.calibration.map(figure)).collect())
    };
    let mut votes: HashMap<&'static str, usize> = HashMap::new();
    for one in samples {
        *votes.entry(one.chosen).or_default() += 1;
    }
    let chosen = votes.into_iter().max_by_key(|&(chosen, votes)| (votes, chosen))?.0;
    Some(RegisterRow {
        backend: cell.backend,
        region_bytes: cell.region_bytes,
        contexts: cell.contexts,
        pages: cell.pages,
        resident: cell.resident,
        policy,
        chosen: chosen.to_owned(),
        populate_s: of(|one| one.populate_s)?,
        register_s: of(|one| one.register_s)?,
        unregister_s: of(|one| one.unregister_s)?,
        total_s: of(RegisterSample::total_s)?,
        calibration_sequential_gib_per_s: calibration(|rates| rates.0),
        calibration_parallel_gib_per_s: calibration(|rates| rates.1),
        runs: u32::try_from(samples.len()).unwrap_or(u32::MAX),
    })
}

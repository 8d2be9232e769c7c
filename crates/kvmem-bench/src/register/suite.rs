//! *Suite*: runs the plan.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use kvmem::arena::{PageSize, Populate, Region};
use kvmem::register::{Limits, PlanOptions, Policy, plan};
use kvmem_testkit::workload::stream;
use rand::seq::SliceRandom;

use super::ballast::Ballast;
use super::bed::Ground;
use super::measure::{Seen, measure};
use super::plan::{Cell, Effort, Group, Means, contenders, groups};
use super::report::{Report, Row, Skipped};
use super::{BenchError, ContenderId, MeasureError, Options, Pages, goals};
use crate::arena::mapping;
use crate::hugepages::Hugepages;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::stats::median;

/// Bytes planned, and registrars.
const PLANNED: usize = 1 << 40;
const PLANNED_FOR: usize = 8;
/// Of the order in which contenders take turns.
const SEED: u64 = 1;
/// Plans made, of which the median counts.
const PLANS: usize = 25;

pub(super) fn run(
    options: &Options,
    progress: &mut dyn Progress<Row>,
) -> Result<Report, BenchError> {
    let start = Instant::now();
    let effort = Effort::of(options);
    let contenders = contenders(options);
    let (groups, skipped) = groups(options, &Means::here());
    progress.begin(groups.iter().map(|group| group.units(contenders.len(), &effort)).sum());
    let mut found = Found {
        borrow_hugepages: options.borrow_hugepages,
        contenders,
        effort,
        rows: Vec::new(),
        skipped,
    };
    for group in &groups {
        let left = Units { left: group.units(found.contenders.len(), &effort) };
        found.add(group, left, progress)?;
    }
    let plan_ms = plan_ms();
    let goals = goals::of(&found.rows, plan_ms);
    Ok(Report {
        suite: "register".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        quick: options.quick,
        reps: effort.reps,
        machine: Machine::here(),
        seconds: start.elapsed().as_secs_f64(),
        rows: found.rows,
        plan_ms,
        skipped: found.skipped,
        goals,
    })
}

/// Milliseconds to plan a region of 1 TiB for 8 registrars with the limits of rings. `None` where
/// no region of that size can be mapped.
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

/// Units of work of a group that were announced and not yet reported as done.
struct Units {
    left: u64,
}

impl Units {
    fn advance(&mut self, units: u64, progress: &mut dyn Progress<Row>) {
        let units = units.min(self.left);
        self.left -= units;
        progress.advance(units);
    }
}

/// What the groups so far have found.
struct Found {
    borrow_hugepages: bool,
    contenders: Vec<ContenderId>,
    effort: Effort,
    rows: Vec<Row>,
    skipped: Vec<Skipped>,
}

impl Found {
    fn add(
        &mut self,
        group: &Group,
        mut units: Units,
        progress: &mut dyn Progress<Row>,
    ) -> Result<(), BenchError> {
        match self.group(group, &mut units, progress) {
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Limited(reason)) => self.skipped.push(group.skipped(None, reason)),
            Ok(()) => {}
        }
        units.advance(u64::MAX, progress);
        Ok(())
    }

    /// Says once what holds for resident memory and for other.
    fn skip(&mut self, skipped: Skipped) {
        if !self.skipped.contains(&skipped) {
            self.skipped.push(skipped);
        }
    }

    /// Measures the cells of `group`.
    fn group(
        &mut self,
        group: &Group,
        units: &mut Units,
        progress: &mut dyn Progress<Row>,
    ) -> Result<(), Stop> {
        if self.contenders.is_empty() || group.cells.is_empty() {
            return Ok(());
        }
        let first = (group.cells[0], self.contenders[0]);
        let stop = |error| Stop::of(error, first);
        let ground = Ground::open(group).map_err(stop)?;
        // Said once if it holds for all cells: a cell without a reason comes first.
        let reasons = group.cells.iter().map(|cell| ground.too_little_memlock(cell));
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
            // Pages of a pool stay fetched from the host.
            mapping::map_populate(Pages::Huge, group.region_bytes as usize)
                .map_err(|error| stop(error.into()))?;
        }
        let mut resident = None;
        let mut ballast = None;
        for cell in &group.cells {
            if let Some(reason) = ground.too_little_memlock(cell) {
                self.skip(group.skipped(Some(cell.contexts), reason));
                continue;
            }
            // Regions for cells that are resident beforehand come first, and are one.
            if cell.resident && resident.is_none() {
                resident = Some(ground.region(true).map_err(stop)?);
            } else if !cell.resident {
                resident = None;
                if cell.pages == Some(Pages::Base) && ballast.is_none() {
                    // A quarter more than a run takes: others take from it too.
                    progress.step(&format!("{cell}: memory"));
                    let plenty = cell.region_bytes / 4 * 5;
                    ballast = Some(
                        Ballast::lay(plenty).map_err(|error| Stop::Limited(error.to_string()))?,
                    );
                }
            }
            match self.cell(cell, &ground, resident.as_ref(), units, progress) {
                Err(Stop::Limited(reason)) => self.skip(group.skipped(Some(cell.contexts), reason)),
                result => result?,
            }
        }
        Ok(())
    }

    /// Measures the contenders in `cell`, taking turns, and adds a row for each.
    fn cell(
        &mut self,
        cell: &Cell,
        ground: &Ground,
        resident: Option<&Arc<Region>>,
        units: &mut Units,
        progress: &mut dyn Progress<Row>,
    ) -> Result<(), Stop> {
        let count = self.contenders.len();
        let each = cell.units(1, &self.effort) / (u64::from(self.effort.reps) + 1);
        let mut seen: Vec<Vec<Seen>> = vec![Vec::new(); count];
        let mut order: Vec<usize> = (0..count).collect();
        let mut shuffles = stream(SEED, self.rows.len() as u64);
        let mut start = Instant::now();
        let rounds =
            1 + if cell.backend.is_simulated() { self.effort.reps } else { self.effort.most_reps };
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
                    // What the run is about to take is fetched from the host.
                    drop(ground.region(true).map_err(failed)?);
                }
                let one = run_once(contender, cell, ground, resident).map_err(failed)?;
                // The first round does not count.
                if round > 0 {
                    seen[turn].push(one);
                }
                if round <= self.effort.reps as usize {
                    units.advance(each, progress);
                }
            }
        }
        for (contender, seen) in self.contenders.iter().zip(&seen) {
            if let Some(row) = row(cell, *contender, seen) {
                progress.row(&row);
                self.rows.push(row);
            }
        }
        Ok(())
    }
}

/// Why a group or a cell ends early.
enum Stop {
    /// This machine cannot have it.
    Limited(String),
    /// Somebody failed at what should be possible here.
    Failed(BenchError),
}

impl Stop {
    fn of(error: MeasureError, (cell, contender): (Cell, ContenderId)) -> Self {
        match error {
            MeasureError::Limited(_) | MeasureError::System(_) => Stop::Limited(error.to_string()),
            error => Stop::Failed(BenchError { cell: cell.to_string(), contender, error }),
        }
    }
}

fn run_once(
    contender: ContenderId,
    cell: &Cell,
    ground: &Ground,
    resident: Option<&Arc<Region>>,
) -> Result<Seen, MeasureError> {
    let bed = ground.bed(cell);
    match resident {
        Some(region) => measure(contender, &bed, region),
        None => measure(contender, &bed, &ground.region(cell.resident)?),
    }
}

/// The medians of what the runs saw; `None` if there was none.
fn row(cell: &Cell, policy: ContenderId, seen: &[Seen]) -> Option<Row> {
    let of = |figure: fn(&Seen) -> f64| median(seen.iter().map(figure).collect());
    let trial = |figure: fn((f64, f64)) -> f64| {
        median(seen.iter().filter_map(|one| one.trial.map(figure)).collect())
    };
    let mut votes: HashMap<&'static str, usize> = HashMap::new();
    for one in seen {
        *votes.entry(one.chosen).or_default() += 1;
    }
    let chosen = votes.into_iter().max_by_key(|&(chosen, votes)| (votes, chosen))?.0;
    Some(Row {
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
        total_s: of(Seen::total_s)?,
        trial_sequential_gib_per_s: trial(|trial| trial.0),
        trial_parallel_gib_per_s: trial(|trial| trial.1),
        runs: u32::try_from(seen.len()).unwrap_or(u32::MAX),
    })
}

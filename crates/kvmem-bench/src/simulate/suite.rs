//! *Suite*: what is simulated, its rows and their presentation.

use std::fmt::{self, Display, Formatter};

use kvmem_report::{Lines, Scale};
use serde::{Deserialize, Serialize};

use super::costs::{Costs, NS};
use super::machine::SimulatedMachine;
use super::{LINE_NS, SimulateOptions, SimulatedScenario, THREADS, WayId};
use crate::concurrency::{CAPACITY, ConcurrencyMeasureError, Recording, record};
use crate::progress::Progress;
use crate::suite::columns::{distinct, side_by_side};
use crate::suite::plan::{Group, SMALLEST, Stop};
use crate::suite::{GoalList, Measured, NothingSkipped, Plan, Report, Section, Suite, chosen};

/// Logical threads of a recording.
const LOGICAL_THREADS: u32 = 64;
/// Recorded calls of each logical thread, and simulated calls of a row: in a quick run, and in a
/// full one.
const STEPS: [usize; 2] = [if SMALLEST { 40 } else { 400 }, 2_000];
const CALLS: [u64; 2] = [if SMALLEST { 4_000 } else { 20_000 }, 128_000];
/// Replays of a recording.
const REPLAYS: u32 = 7;

/// The comparison of ways to share a space.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulateSuite;

/// One way with one number of threads and one time of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimulateRow {
    /// The scenario.
    pub scenario: SimulatedScenario,
    /// The way.
    pub way: WayId,
    /// Threads, each on a core of its own.
    pub threads: u32,
    /// Nanoseconds of a transfer of a line from one core to another.
    pub line_ns: u32,
    /// Nanoseconds of a recorded call that takes the lock, alone; the mean.
    pub call_ns: f64,
    /// Million calls per second, all threads together.
    pub mops: f64,
    /// Virtual nanoseconds that half of the calls do not exceed.
    pub p50_ns: f64,
    /// Virtual nanoseconds that 99 % of the calls do not exceed.
    pub p99_ns: f64,
    /// Lines that a call moves from one core to another.
    pub lines: f64,
    /// The most calls of other threads that the holder of a lock ran in one turn.
    pub longest_turn: u64,
    /// The share of calls that magazines served.
    pub hits: f64,
}

/// The settings of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulateDetails {
    /// Lines of metadata that travel with the lock.
    pub metadata_lines: u32,
    /// Simulated calls of each row.
    pub calls: u64,
    /// The mean nanoseconds to which the recorded times were scaled.
    pub call_ns: Option<u32>,
}

impl Display for SimulateDetails {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} calls a row, {} lines of metadata", self.calls, self.metadata_lines)
    }
}

/// One simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimulateTask {
    scenario: SimulatedScenario,
    way: WayId,
    threads: u32,
    line_ns: u32,
}

/// The recording of the scenario that is simulated.
pub(crate) struct RecordingFixture {
    steps: usize,
    replays: u32,
    calls: u64,
    metadata_lines: u32,
    call_ns: Option<u32>,
    recorded: Option<(SimulatedScenario, Recording)>,
}

impl Suite for SimulateSuite {
    const NAME: &'static str = "simulate";
    type Row = SimulateRow;
    type Skipped = NothingSkipped;
    type Details = SimulateDetails;

    /// A simulation has no goals.
    fn goals(_: &Report<Self>, _: &mut GoalList) {}

    fn sections(report: &Report<Self>) -> Vec<Section> {
        let cells = distinct(report.rows.iter().map(|row| (row.scenario, row.line_ns)));
        cells.into_iter().map(|cell| section(&report.rows, cell)).collect()
    }
}

/// Returns the plots and tables of one scenario with one time of a transfer.
fn section(rows: &[SimulateRow], (scenario, line_ns): (SimulatedScenario, u32)) -> Section {
    let of = |row: &&SimulateRow| (row.scenario, row.line_ns) == (scenario, line_ns);
    let rows: Vec<&SimulateRow> = rows.iter().filter(of).collect();
    let threads = distinct(rows.iter().map(|row| row.threads));
    let call_ns = rows.first().map_or(0.0, |row| row.call_ns);
    let heading = format!("{scenario}, {line_ns} ns a transfer, {call_ns:.0} ns a call alone");
    let table = |figure: &str, cells: &dyn Fn(&SimulateRow) -> String| {
        let columns = threads.iter().map(|&threads| (threads, [format!("{figure} ×{threads}")]));
        side_by_side(
            &rows,
            columns,
            |row| row.way.to_string(),
            |row| row.threads,
            |row| [cells(row)],
        )
    };
    let relative = |row: &SimulateRow| {
        let one = rows.iter().find(|other| (other.way, other.threads) == (row.way, 1));
        one.map_or_else(
            || format!("{:.2}", row.mops),
            |one| format!("{:.2} ({:.2})", row.mops, row.mops / one.mops),
        )
    };
    Section::new(heading)
        .lines(curves("All threads together, more is better", "million calls a second", &rows, {
            |row| row.mops
        }))
        .lines(curves("99 % of the calls take no longer, less is better", "ns", &rows, |row| {
            row.p99_ns
        }))
        .table(table("M/s", &relative))
        .table(table("p50/p99", &|row| format!("{:.0}/{:.0}", row.p50_ns, row.p99_ns)))
        .table(table("lines", &|row| format!("{:.2}", row.lines)))
}

fn curves(
    title: &str,
    unit: &str,
    rows: &[&SimulateRow],
    figure: impl Fn(&SimulateRow) -> f64,
) -> Lines {
    let mut lines = Lines::new(title, ("threads", Scale::Log), (unit, Scale::Log));
    for way in WayId::ALL {
        let own = rows.iter().filter(|row| row.way == way);
        let points: Vec<(f64, f64)> =
            own.map(|row| (f64::from(row.threads), figure(row))).collect();
        if !points.is_empty() {
            lines.line(way.name(), points);
        }
    }
    lines
}

impl Measured for SimulateSuite {
    type Options = SimulateOptions;
    type Task = SimulateTask;
    type Sample = SimulateRow;
    type Fixture = RecordingFixture;
    type Error = ConcurrencyMeasureError;

    fn plan(options: &SimulateOptions) -> Plan<Self> {
        let or = |named: &[u32], usual: &[u32]| {
            if named.is_empty() { usual.to_vec() } else { named.to_vec() }
        };
        let threads = or(&options.threads, &THREADS);
        let cells = chosen::<SimulatedScenario>(&options.scenarios).into_iter();
        let line_ns = or(&options.line_ns, &LINE_NS);
        let cells =
            cells.flat_map(|scenario| line_ns.iter().map(move |&line_ns| (scenario, line_ns)));
        let ways = chosen::<WayId>(&options.ways);
        let group = |(scenario, line_ns)| {
            let tasks = ways.iter().flat_map(|&way| {
                let task = move |&threads| SimulateTask { scenario, way, threads, line_ns };
                threads.iter().map(task)
            });
            Group::rotated(tasks, 1, if options.quick { 10 } else { 80 })
        };
        let full = usize::from(!options.quick);
        let (calls, metadata_lines) = (CALLS[full], options.metadata_lines);
        Plan {
            quick: options.quick,
            groups: cells.map(group).collect(),
            skipped: Vec::new(),
            fixture: RecordingFixture {
                steps: STEPS[full],
                replays: options.reps.unwrap_or(REPLAYS).max(1),
                calls,
                metadata_lines,
                call_ns: options.call_ns,
                recorded: None,
            },
            details: SimulateDetails { metadata_lines, calls, call_ns: options.call_ns },
        }
    }

    fn name(task: &SimulateTask) -> String {
        let SimulateTask { scenario, way, threads, line_ns } = task;
        format!("{scenario} {way} ×{threads}, {line_ns} ns")
    }

    fn prepare(
        fixture: &mut RecordingFixture,
        task: &SimulateTask,
        progress: &mut dyn Progress<SimulateRow>,
    ) -> Result<(), Stop<NothingSkipped, ConcurrencyMeasureError>> {
        if !matches!(fixture.recorded, Some((scenario, _)) if scenario == task.scenario) {
            progress.step(&format!("recording {}", task.scenario));
            let (steps, replays) = (fixture.steps, fixture.replays);
            let scenario = task.scenario.recorded();
            let mut recorded = record(scenario, LOGICAL_THREADS, steps, replays)?;
            if let Some(call_ns) = fixture.call_ns {
                recorded.scale_to(f64::from(call_ns));
            }
            fixture.recorded = Some((task.scenario, recorded));
        }
        Ok(())
    }

    fn measure(
        fixture: &mut RecordingFixture,
        task: &SimulateTask,
        _: u32,
    ) -> Result<SimulateRow, Stop<NothingSkipped, ConcurrencyMeasureError>> {
        let Some((_, recording)) = &fixture.recorded else {
            return Err(ConcurrencyMeasureError::NothingDone.into());
        };
        let costs = Costs {
            line: u64::from(task.line_ns) * NS,
            metadata_lines: u64::from(fixture.metadata_lines),
            think: recording.loop_ps,
        };
        let SimulateTask { scenario, way, threads, line_ns } = *task;
        let cores = threads as usize;
        let machine = SimulatedMachine::new(&way.way(), costs, &recording.threads, cores, CAPACITY);
        let outcome = machine.run(fixture.calls);
        Ok(SimulateRow {
            scenario,
            way,
            threads,
            line_ns,
            call_ns: recording.call_ns(),
            mops: outcome.mops(),
            p50_ns: outcome.percentile(50),
            p99_ns: outcome.percentile(99),
            lines: outcome.lines(),
            longest_turn: outcome.longest_turn,
            hits: outcome.hits as f64 / outcome.begun.max(1) as f64,
        })
    }

    fn row(
        _: &mut SimulateDetails,
        _: &SimulateTask,
        samples: &[SimulateRow],
    ) -> Option<SimulateRow> {
        samples.first().cloned()
    }
}

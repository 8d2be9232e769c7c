//! *Suite*: its rows, and how they are measured.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::measure::{ArenaSample, measure};
use super::plan::{self, ArenaEffort, ArenaTask};
use super::{
    ArenaContenderId, ArenaMeasureError, ArenaOptions, Op, Pages, goals, mapping, sections,
};
use crate::hugepages::Hugepages;
use crate::progress::Progress;
use crate::stats::median;
use crate::suite::plan::Stop;
use crate::suite::{GoalList, Measured, Plan, Report, Section, Suite};

/// The benchmark of the arena layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ArenaSuite;

/// One contender in one operation. A figure that the operation lacks is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArenaRow {
    /// The operation.
    pub op: Op,
    /// The kind of pages, for operations on pages.
    pub pages: Option<Pages>,
    /// Requested threads; for `kvmem-auto` the number it chose. The library populates with at most
    /// one thread per core.
    pub threads: u32,
    /// Bytes of an allocation or of a mapping.
    pub size_bytes: u64,
    /// The contender.
    pub contender: ArenaContenderId,
    /// Nanoseconds of each thread's processor time per call, or of a whole mapping; the median of
    /// the repetitions.
    pub ns_per_op: Option<f64>,
    /// GiB per second of wall time, populated or returned; the median of the repetitions.
    pub gib_per_s: Option<f64>,
}

/// Rows that this machine cannot measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaSkipped {
    /// The operation.
    pub op: Op,
    /// The kind of pages; all when `None`.
    pub pages: Option<Pages>,
    /// The reason.
    pub reason: String,
}

impl Display for ArenaSkipped {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let pages = self.pages.map_or_else(String::new, |pages| format!(", {pages}"));
        write!(f, "{}{pages}: {}", self.op, self.reason)
    }
}

/// The settings of a run, and the figure that belongs to no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaDetails {
    /// Repetitions of bump loops; figures are medians.
    pub bump_reps: u32,
    /// Repetitions of everything else.
    pub page_reps: u32,
    /// Bytes that became resident by mapping 1 TiB, if measured and known to the system.
    pub mapped_resident_bytes: Option<u64>,
}

impl Display for ArenaDetails {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {} repetition(s)", self.bump_reps, self.page_reps)
    }
}

/// What the measurements share.
pub(crate) struct ArenaFixture {
    pub(super) effort: ArenaEffort,
    pub(super) borrow_hugepages: bool,
    /// The hugepages of the current group.
    pub(super) hugepages: Option<Hugepages>,
}

impl Suite for ArenaSuite {
    const NAME: &'static str = "arena";
    type Row = ArenaRow;
    type Skipped = ArenaSkipped;
    type Details = ArenaDetails;

    fn goals(report: &Report<Self>, goals: &mut GoalList) {
        goals::add(&report.rows, report.details.mapped_resident_bytes, goals);
    }

    fn sections(report: &Report<Self>) -> Vec<Section> {
        sections::of(&report.rows, report.details.mapped_resident_bytes)
    }
}

impl Measured for ArenaSuite {
    type Options = ArenaOptions;
    type Task = ArenaTask;
    type Sample = ArenaSample;
    type Fixture = ArenaFixture;
    type Error = ArenaMeasureError;

    fn plan(options: &ArenaOptions) -> Plan<Self> {
        plan::plan(options)
    }

    fn name(task: &ArenaTask) -> String {
        let pages = task.pages.map_or_else(String::new, |pages| format!("{pages} "));
        format!("{} {pages}{}", task.op, label(task))
    }

    /// Provides the hugepages of a group, and fetches its memory from the host.
    fn prepare(
        fixture: &mut ArenaFixture,
        first: &ArenaTask,
        _: &mut dyn Progress<ArenaRow>,
    ) -> Result<(), Stop<ArenaSkipped, ArenaMeasureError>> {
        fixture.hugepages = None;
        let Some(pages) = first.pages else { return Ok(()) };
        let bytes = first.resident_bytes();
        if pages == Pages::Huge {
            let hugepages = Hugepages::provide(bytes, fixture.borrow_hugepages);
            fixture.hugepages =
                Some(hugepages.map_err(|reason| Stop::Skip(first.skipped(reason)))?);
        }
        if bytes > 0 {
            mapping::map_populate(pages, bytes as usize).map_err(ArenaMeasureError::from)?;
        }
        Ok(())
    }

    fn measure(
        fixture: &mut ArenaFixture,
        task: &ArenaTask,
        _: u32,
    ) -> Result<ArenaSample, Stop<ArenaSkipped, ArenaMeasureError>> {
        // Creating hugepages for a memory file after a task that used base pages would also pay for
        // fetching them from the host; an unmeasured run pays instead.
        let again = task.pages == Some(Pages::Shared) && task.op == Op::Populate;
        let warm = if again { measure(task, &fixture.effort).map(drop) } else { Ok(()) };
        warm.and_then(|()| measure(task, &fixture.effort)).map_err(|error| {
            // A limit forbids the mapping; this says nothing about a contender's speed.
            if task.op == Op::Map || matches!(error, ArenaMeasureError::System(_)) {
                Stop::Skip(task.skipped(format!("{}: {error}", label(task))))
            } else {
                Stop::Fail(error)
            }
        })
    }

    fn row(
        details: &mut ArenaDetails,
        task: &ArenaTask,
        samples: &[ArenaSample],
    ) -> Option<ArenaRow> {
        if task.op == Op::Map {
            details.mapped_resident_bytes =
                samples.iter().filter_map(|one| one.resident_bytes).max();
        }
        let ns = median(samples.iter().map(|one| one.ns).collect());
        let rate = matches!(task.op, Op::Populate | Op::Discard);
        let gib = task.size_bytes as f64 / (1u64 << 30) as f64;
        let threads = if task.contender == ArenaContenderId::KvmemAuto {
            median(samples.iter().map(|one| f64::from(one.threads)).collect())
                .map_or(1, |threads| threads as u32)
        } else {
            task.threads.unwrap_or(1)
        };
        Some(ArenaRow {
            op: task.op,
            pages: task.pages,
            threads,
            size_bytes: task.size_bytes,
            contender: task.contender,
            ns_per_op: if rate { None } else { ns },
            gib_per_s: if rate { ns.map(|ns| gib * 1e9 / ns) } else { None },
        })
    }
}

/// Names what distinguishes tasks with the same operation and pages: size, contender and threads.
fn label(task: &ArenaTask) -> String {
    let size = if task.pages.is_none() { format!("{} B ", task.size_bytes) } else { String::new() };
    let threads = task.threads.map_or_else(String::new, |threads| format!(" ×{threads}"));
    format!("{size}{}{threads}", task.contender)
}

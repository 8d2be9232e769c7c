//! *Suite*: its rows, and how they are measured.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::index::{IndexEffort, IndexFigures};
use super::measure::{Participant, RunningTurns, TierFixture, TierSample, TierTask};
use super::{TierBenchOptions, TierMeasureError, TierTransfer, goals, sections};
use crate::progress::Progress;
use crate::stats::median;
use crate::suite::plan::{Group, SMALLEST, Stop};
use crate::suite::{GoalList, Measured, NothingSkipped, Plan, Report, Section, Suite, chosen};

/// The benchmark of the disk tier.
#[derive(Clone, Debug, PartialEq)]
pub struct TierSuite;

/// Rows that a machine cannot measure: there are none.
pub type TierSkipped = NothingSkipped;

/// One contender in passes of one kind: the medians of the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierRow {
    /// What a pass does.
    pub transfer: TierTransfer,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// The contender.
    pub contender: String,
    /// Bytes of values per second, in 10^9.
    pub gb_per_s: f64,
    /// Seconds of processor time for 10^9 bytes of values.
    pub cpu_s_per_gb: f64,
}

/// The settings of a run, and figures that belong to no row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierDetails {
    /// Repetitions of each pass; figures are medians.
    pub reps: u32,
    /// Transfers in flight.
    pub depth: u32,
    /// Bytes that each contender may store, and bytes of a pass.
    pub bytes: u64,
    /// Bytes of a pass, about.
    pub pass_bytes: u64,
    /// The figures of the index.
    pub index: Option<IndexFigures>,
}

impl Display for TierDetails {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let TierDetails { reps, depth, bytes, pass_bytes, .. } = self;
        write!(
            f,
            "{reps} repetition(s), {depth} transfers in flight, files of {} MiB, passes of {} MiB",
            bytes >> 20,
            pass_bytes >> 20
        )
    }
}

/// Lengths of values: two powers of two, and an object of 64 tokens.
const VALUE_BYTES: [u64; 3] = [64 << 10, 1 << 20, 3_274_752];
/// Transfers in flight unless the caller chooses.
const DEPTH: u32 = 32;

impl Suite for TierSuite {
    const NAME: &'static str = "tier";
    type Row = TierRow;
    type Skipped = TierSkipped;
    type Details = TierDetails;

    fn goals(report: &Report<Self>, goals: &mut GoalList) {
        goals::add(&report.rows, report.details.index.as_ref(), goals);
    }

    fn sections(report: &Report<Self>) -> Vec<Section> {
        sections::of(&report.rows, report.details.index.as_ref())
    }
}

impl Measured for TierSuite {
    type Options = TierBenchOptions;
    type Task = TierTask;
    type Sample = TierSample;
    type Fixture = TierFixture;
    type Error = TierMeasureError;

    fn plan(options: &TierBenchOptions) -> Plan<Self> {
        let (bytes, pass, reps) = match options.quick {
            false => (4 << 30, 256 << 20, 9),
            true if SMALLEST => (64 << 20, 8 << 20, 1),
            true => (512 << 20, 64 << 20, 3),
        };
        let bytes = options.bytes.unwrap_or(bytes);
        // A pass evicts a part of what is stored, never what the next one fetches.
        let pass = pass.min(bytes / 8);
        let reps = options.reps.unwrap_or(reps);
        let value_bytes = match options.value_bytes.as_slice() {
            [] => VALUE_BYTES.to_vec(),
            some => some.to_vec(),
        };
        let here = chosen(&options.contenders).into_iter().map(Participant::Here);
        let beside = options.beside.iter().cloned().map(Participant::Beside);
        let participants: Vec<Participant> = here.chain(beside).collect();
        let mut groups = Vec::new();
        for &value_bytes in &value_bytes {
            for transfer in TierTransfer::ALL {
                let tasks = participants.iter().cloned().map(|participant| TierTask::Pass {
                    transfer,
                    value_bytes,
                    participant,
                });
                groups.push(Group::rotated(tasks, reps, pass >> 20));
            }
        }
        groups.push(Group::rotated([TierTask::Index], 1, 1000));
        let index = match options.quick {
            false => IndexEffort { entries: 1_000_000, space: 64 << 30 },
            true if SMALLEST => IndexEffort { entries: 1000, space: 512 << 20 },
            true => IndexEffort { entries: 100_000, space: 8 << 30 },
        };
        let depth = options.depth.unwrap_or(DEPTH);
        Plan {
            quick: options.quick,
            groups,
            skipped: Vec::new(),
            fixture: TierFixture {
                dir: options.dir.clone().unwrap_or_else(std::env::temp_dir),
                bytes,
                pass,
                depth,
                participants,
                index,
                running: RunningTurns::default(),
            },
            details: TierDetails { reps, depth, bytes, pass_bytes: pass, index: None },
        }
    }

    fn name(task: &TierTask) -> String {
        match task {
            TierTask::Pass { transfer, value_bytes, participant } => {
                format!("{transfer}, {value_bytes} bytes: {}", participant.name())
            }
            TierTask::Index => "index".to_owned(),
        }
    }

    fn prepare(
        fixture: &mut TierFixture,
        first: &TierTask,
        _: &mut dyn Progress<TierRow>,
    ) -> Result<(), Stop<TierSkipped, TierMeasureError>> {
        Ok(fixture.prepare(first)?)
    }

    fn measure(
        fixture: &mut TierFixture,
        task: &TierTask,
        rep: u32,
    ) -> Result<TierSample, Stop<TierSkipped, TierMeasureError>> {
        Ok(fixture.measure(task, rep)?)
    }

    fn row(details: &mut TierDetails, task: &TierTask, samples: &[TierSample]) -> Option<TierRow> {
        let mut passes = Vec::new();
        for sample in samples {
            match sample {
                TierSample::Pass(time) => passes.push(*time),
                TierSample::Index(figures) => details.index = Some(figures.clone()),
            }
        }
        let TierTask::Pass { transfer, value_bytes, participant } = task else { return None };
        let gb = TierFixture::pass_bytes(details.pass_bytes, *value_bytes) as f64 / 1e9;
        Some(TierRow {
            transfer: *transfer,
            value_bytes: *value_bytes,
            contender: participant.name().to_owned(),
            gb_per_s: gb / median(passes.iter().map(|time| time.seconds).collect())?,
            cpu_s_per_gb: median(passes.iter().map(|time| time.cpu_seconds).collect())? / gb,
        })
    }
}

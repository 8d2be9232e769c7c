//! *Suite*: its rows, and how they are measured.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::measure::{SlabSample, in_child, measure};
use super::{
    ChildCommand, Pattern, SlabContenderId, SlabMeasureError, SlabOptions, SlabTask, goals, plan,
    sections,
};
use crate::stats::median;
use crate::suite::plan::Stop;
use crate::suite::{GoalList, Measured, Plan, Report, Section, SeededRepetitions, Suite};

/// The benchmark of the slab layer.
#[derive(Clone, Debug, PartialEq)]
pub struct SlabSuite;

/// One contender in one pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlabRow {
    /// The pattern.
    pub pattern: Pattern,
    /// Bytes of the largest block; in `fixed`, of every block.
    pub max_block_bytes: u32,
    /// Threads; in `producer-consumer` half of them allocate.
    pub threads: u32,
    /// The contender.
    pub contender: SlabContenderId,
    /// Nanoseconds of a processor per allocation and free, waiting included; the median of the
    /// repetitions.
    pub ns_per_pair: f64,
    /// Bytes that became resident; the median of the repetitions. `None` if the system does not
    /// report them, or if the measurement had no process of its own.
    pub rss_bytes: Option<u64>,
}

/// An absent contender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlabSkipped {
    /// The contender.
    pub contender: SlabContenderId,
    /// The reason.
    pub reason: String,
}

impl Display for SlabSkipped {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.contender, self.reason)
    }
}

impl Suite for SlabSuite {
    const NAME: &'static str = "slab";
    type Row = SlabRow;
    type Skipped = SlabSkipped;
    type Details = SeededRepetitions;

    fn goals(report: &Report<Self>, goals: &mut GoalList) {
        goals::add(&report.rows, goals);
    }

    fn sections(report: &Report<Self>) -> Vec<Section> {
        sections::of(&report.rows)
    }
}

impl Measured for SlabSuite {
    type Options = SlabOptions;
    type Task = SlabTask;
    type Sample = SlabSample;
    /// How to start a process for each measurement.
    type Fixture = Option<ChildCommand>;
    type Error = SlabMeasureError;

    fn plan(options: &SlabOptions) -> Plan<Self> {
        plan::plan(options)
    }

    fn name(task: &SlabTask) -> String {
        let SlabTask { pattern, max_block_bytes, contender, threads, .. } = task;
        format!("{pattern} ≤ {max_block_bytes} B {contender} ×{threads}")
    }

    fn measure(
        child: &mut Option<ChildCommand>,
        task: &SlabTask,
        _: u32,
    ) -> Result<SlabSample, Stop<SlabSkipped, SlabMeasureError>> {
        Ok(match *child {
            Some(child) => in_child(task, child)?,
            // All heaps share the memory of this process.
            None => SlabSample { rss_bytes: None, ..measure(task)? },
        })
    }

    fn row(_: &mut SeededRepetitions, task: &SlabTask, samples: &[SlabSample]) -> Option<SlabRow> {
        let rss = samples.iter().filter_map(|one| one.rss_bytes).map(|bytes| bytes as f64);
        Some(SlabRow {
            pattern: task.pattern,
            max_block_bytes: task.max_block_bytes,
            threads: task.threads,
            contender: task.contender,
            ns_per_pair: median(samples.iter().map(|one| one.ns_per_pair).collect())?,
            rss_bytes: median(rss.collect()).map(|bytes| bytes as u64),
        })
    }
}

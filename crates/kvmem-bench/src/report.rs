//! What a run of the offset suite found, and the goals of every suite.

use serde::{Deserialize, Serialize};

use crate::contender::ContenderId;
use crate::machine::Machine;
use crate::offset::WorkloadId;

/// One contender in one workload. Shares are in 0..=1; a figure that the workload does not have is
/// `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The workload.
    pub workload: WorkloadId,
    /// The contender.
    pub contender: ContenderId,
    /// Which of several forms of the workload, such as a distribution or a ratio of sizes.
    pub variant: Option<String>,
    /// Bytes of a request, where all have the same size.
    pub size_bytes: Option<u64>,
    /// Bytes of the pool.
    pub pool_bytes: Option<u64>,
    /// Smallest utilization sample.
    pub util_min: Option<f64>,
    /// 99 % of the samples are at least this.
    pub util_p99: Option<f64>,
    /// 90 % of the samples are at least this.
    pub util_p90: Option<f64>,
    /// Half of the samples are at least this.
    pub util_p50: Option<f64>,
    /// Largest sample.
    pub util_max: Option<f64>,
    /// Mean utilization; of `shift`, from one to two turnovers after the change.
    pub util_avg: Option<f64>,
    /// What no allocator can exceed, where that is known.
    pub util_bound: Option<f64>,
    /// Mean utilization while the workload changes (`shift`).
    pub util_during: Option<f64>,
    /// Mean utilization ten to twenty turnovers after the change (`shift`).
    pub util_late: Option<f64>,
    /// Highest peak of live bytes over the pool at which at most one payload in 10,000 failed
    /// (`rl`).
    pub live_fraction: Option<f64>,
    /// Highest peak of live bytes over the pool at which nothing failed (`rl`).
    pub live_fraction_no_failure: Option<f64>,
    /// Share of payloads that failed where the peak of live bytes is 0.95 of the pool (`rl`).
    pub fail_rate: Option<f64>,
    /// Nanoseconds per request over the whole loop; the median of the repetitions.
    pub ns_per_op: Option<f64>,
    /// Objects alive at the end.
    pub live: Option<u64>,
    /// Utilization samples, where they are few.
    pub samples: Option<u64>,
    /// Bytes of metadata for each live allocation, its handle included (`metadata`).
    pub metadata_bytes_per_live: Option<f64>,
    /// Bytes that become resident when a space of `pool_bytes` is created (`metadata`).
    pub resident_bytes: Option<u64>,
    /// The published smallest sample.
    pub published_util_min: Option<f64>,
    /// The published mean.
    pub published_util_avg: Option<f64>,
    /// The published time in nanoseconds per request.
    pub published_ns: Option<f64>,
}

impl Row {
    /// A row without figures.
    pub fn new(workload: WorkloadId, contender: ContenderId) -> Self {
        Self {
            workload,
            contender,
            variant: None,
            size_bytes: None,
            pool_bytes: None,
            util_min: None,
            util_p99: None,
            util_p90: None,
            util_p50: None,
            util_max: None,
            util_avg: None,
            util_bound: None,
            util_during: None,
            util_late: None,
            live_fraction: None,
            live_fraction_no_failure: None,
            fail_rate: None,
            ns_per_op: None,
            live: None,
            samples: None,
            metadata_bytes_per_live: None,
            resident_bytes: None,
            published_util_min: None,
            published_util_avg: None,
            published_ns: None,
        }
    }
}

/// A run: where, when with what, and every row. `Display` draws the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Which layer: "offset".
    pub suite: String,
    /// Version of the library.
    pub version: String,
    /// Seed of all workloads.
    pub seed: u64,
    /// Whether loops were shortened.
    pub quick: bool,
    /// Repetitions of each timed loop; figures are medians.
    pub reps: u32,
    /// The machine.
    pub machine: Machine,
    /// Seconds that the whole run took.
    pub seconds: f64,
    /// The figures.
    pub rows: Vec<Row>,
    /// What the library sets out to reach, and whether this run shows it.
    pub goals: Vec<Goal>,
}

/// A figure to reach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// What is measured.
    pub name: String,
    /// The figure of this run; the worst where several rows count.
    pub value: f64,
    /// What it must not pass.
    pub limit: f64,
    /// On which side of the limit it must stay.
    pub at_least: bool,
    /// Where the worst figure was seen.
    pub at: Option<String>,
}

impl Goal {
    /// The largest of `found`, which is not to exceed `limit`. `None` when nothing was found.
    pub(crate) fn at_most(
        what: &str,
        found: impl IntoIterator<Item = (f64, Option<String>)>,
        limit: f64,
    ) -> Option<Self> {
        let (value, at) = found.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Self { name: what.to_owned(), value, limit, at_least: false, at })
    }

    /// The smallest of `found`, which is not to fall below `limit`. `None` when nothing was found.
    pub(crate) fn at_least(
        what: &str,
        found: impl IntoIterator<Item = (Option<f64>, Option<String>)>,
        limit: f64,
    ) -> Option<Self> {
        let known = found.into_iter().filter_map(|(value, at)| Some((value?, at)));
        let (value, at) = known.min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Self { name: what.to_owned(), value, limit, at_least: true, at })
    }

    /// Whether the figure keeps the limit.
    pub fn met(&self) -> bool {
        if self.at_least { self.value >= self.limit } else { self.value <= self.limit }
    }
}

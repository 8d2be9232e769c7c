//! *Suite*: its rows, how they are computed, and their presentation.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use kvmem_report::{Lines, Scale};
use serde::{Deserialize, Serialize};

use super::super::CacheMeasureError;
use super::{POOLS, PolicyId, Trace, hits};
use crate::suite::columns::{Columns, count, decimal, distinct};
use crate::suite::plan::{Group, Stop};
use crate::suite::{GoalList, Measured, NothingSkipped, Plan, Report, Section, Suite};

/// The comparison of eviction policies.
#[derive(Clone, Debug, PartialEq)]
pub struct HitRateSuite;

/// One policy on one trace in one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HitRateRow {
    /// The trace.
    pub trace: String,
    /// The pool holds one in this many of the distinct blocks.
    pub pool: u64,
    /// Blocks that fit.
    pub blocks: u64,
    /// The policy.
    pub policy: PolicyId,
    /// Shards of the cache.
    pub shards: u32,
    /// Blocks that were found with all blocks before them.
    pub hits: u64,
    /// Requested blocks. Older records call it `requested`.
    #[serde(alias = "asked")]
    pub requested: u64,
}

impl HitRateRow {
    /// Returns the hits in percent of the requested blocks.
    #[must_use]
    pub fn percent(&self) -> f64 {
        100.0 * self.hits as f64 / self.requested as f64
    }

    /// Returns the policy, with the number of shards unless it is one.
    #[must_use]
    pub fn column(&self) -> String {
        match self.shards {
            1 => self.policy.name().to_owned(),
            shards => format!("{} ×{shards}", self.policy.name()),
        }
    }
}

/// The settings of a run without random choices: there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HitRateDetails {}

impl Display for HitRateDetails {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("the same figures at each run")
    }
}

/// The traces of a run.
pub(crate) struct Traces {
    pub(super) quick: bool,
    pub(super) traces: Vec<Arc<Trace>>,
}

/// One policy with one number of shards, in one pool on one trace.
pub(crate) struct HitRateTask {
    trace: Arc<Trace>,
    pool: u64,
    policy: PolicyId,
    shards: u32,
}

impl HitRateTask {
    /// Returns the blocks that fit in the pool.
    fn blocks(&self) -> u64 {
        (self.trace.distinct / self.pool).max(1)
    }
}

impl Suite for HitRateSuite {
    const NAME: &'static str = "cache-policy";
    type Row = HitRateRow;
    type Skipped = NothingSkipped;
    type Details = HitRateDetails;

    fn goals(report: &Report<Self>, goals: &mut GoalList) {
        let rows = &report.rows;
        let more = rows.iter().filter(|row| row.policy == PolicyId::ScanResistant);
        let more = more.filter_map(|row| {
            let same = |other: &&HitRateRow| {
                (other.policy, &other.trace, other.pool, other.shards)
                    == (PolicyId::Lru, &row.trace, row.pool, row.shards)
            };
            let lru = rows.iter().find(same)?;
            let at = format!("{}, pool 1/{}, {} shard(s)", row.trace, row.pool, row.shards);
            Some((row.percent() - lru.percent(), Some(at)))
        });
        let name = "scan-resistant: smallest difference of hits to LRU, in percent of the blocks";
        goals.at_least(name, 0.0, more);
    }

    /// Returns for each trace the hit rate over the size of the pool.
    fn sections(report: &Report<Self>) -> Vec<Section> {
        let of = |trace: &str| {
            let rows: Vec<&HitRateRow> =
                report.rows.iter().filter(|row| row.trace == trace).collect();
            let requested = count(rows.first().map(|row| row.requested));
            let heading = format!(
                "{trace}: percent of {requested} requested blocks that are found with all before \
                 them"
            );
            Section::new(heading).lines(curves(&rows)).table(table(&rows))
        };
        distinct(report.rows.iter().map(|row| row.trace.as_str())).into_iter().map(of).collect()
    }
}

/// Builds a table with a line for each pool and a column for each policy.
fn table(rows: &[&HitRateRow]) -> Columns {
    let names = distinct(rows.iter().map(|row| row.column()));
    let head = ["pool", "blocks"].map(str::to_owned).into_iter();
    let mut table = Columns::new(head.chain(names.iter().cloned()));
    for pool in distinct(rows.iter().map(|row| row.pool)) {
        let rows = || rows.iter().filter(|row| row.pool == pool);
        let percent = |name: &String| {
            decimal(rows().find(|row| row.column() == *name).map(|row| row.percent()), 2)
        };
        let head = [format!("1/{pool}"), count(rows().next().map(|row| row.blocks))];
        table.push(head.into_iter().chain(names.iter().map(percent)));
    }
    table
}

fn curves(rows: &[&HitRateRow]) -> Lines {
    let (x, y) = (("blocks that fit", Scale::Log), ("% of blocks", Scale::Linear));
    let mut lines = Lines::new("Blocks found with all before them, more is better", x, y);
    let mut names = distinct(rows.iter().map(|row| row.column()));
    names.sort();
    for name in names {
        let rows = rows.iter().filter(|row| row.column() == name);
        let points: Vec<(f64, f64)> = rows.map(|row| (row.blocks as f64, row.percent())).collect();
        lines.line(name, points);
    }
    lines
}

impl Measured for HitRateSuite {
    type Options = Traces;
    type Task = HitRateTask;
    /// Blocks found with all blocks before them.
    type Sample = u64;
    type Fixture = ();
    type Error = CacheMeasureError;

    fn plan(options: &Traces) -> Plan<Self> {
        let pools = options.traces.iter().flat_map(|trace| POOLS.map(|pool| (trace, pool)));
        let group = |(trace, pool): (&Arc<Trace>, u64)| {
            let tasks = PolicyId::ALL.iter().flat_map(|&policy| {
                let task = move |&shards| {
                    let trace = Arc::clone(trace);
                    HitRateTask { trace, pool, policy, shards }
                };
                policy.shards().iter().map(task)
            });
            Group::rotated(tasks, 1, 1)
        };
        Plan {
            quick: options.quick,
            groups: pools.map(group).collect(),
            skipped: Vec::new(),
            fixture: (),
            details: HitRateDetails {},
        }
    }

    fn name(task: &HitRateTask) -> String {
        format!("{} 1/{} {}", task.trace.name, task.pool, task.policy)
    }

    fn measure(
        _: &mut (),
        task: &HitRateTask,
        _: u32,
    ) -> Result<u64, Stop<NothingSkipped, CacheMeasureError>> {
        Ok(hits(&task.trace, task.policy, task.shards, task.blocks())?)
    }

    fn row(_: &mut HitRateDetails, task: &HitRateTask, samples: &[u64]) -> Option<HitRateRow> {
        Some(HitRateRow {
            trace: task.trace.name.clone(),
            pool: task.pool,
            blocks: task.blocks(),
            policy: task.policy,
            shards: task.shards,
            hits: *samples.first()?,
            requested: task.trace.requested,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_older_records_are_read() {
        let row: HitRateRow = serde_json::from_str(
            r#"{"trace": "agents", "pool": 4, "blocks": 8, "policy": "lru", "shards": 1,
                "hits": 3, "asked": 12}"#,
        )
        .unwrap();
        assert_eq!((row.requested, row.percent()), (12, 25.0));
    }
}

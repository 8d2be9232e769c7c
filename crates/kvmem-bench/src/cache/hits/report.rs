//! The report of hit rates, and its table.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{POOLS, PolicyId};
use crate::columns::Columns;
use crate::machine::Machine;
use crate::report::Goal;

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

/// The result of a run. `Display` prints the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HitRateReport {
    /// "cache-policy".
    pub suite: String,
    /// Version of the library.
    pub version: String,
    /// Whether traces were shortened.
    pub quick: bool,
    /// The machine; the figures do not depend on it.
    pub machine: Machine,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// The figures.
    pub rows: Vec<HitRateRow>,
    /// The performance goals, and whether this run meets them.
    pub goals: Vec<Goal>,
}

impl HitRateReport {
    pub(super) fn new(quick: bool, seconds: f64, rows: Vec<HitRateRow>) -> HitRateReport {
        let goals = goals(&rows);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        HitRateReport {
            suite: "cache-policy".to_owned(),
            version,
            quick,
            machine: Machine::here(),
            seconds,
            rows,
            goals,
        }
    }

    /// Returns the traces, in the order in which they ran.
    pub(super) fn traces(&self) -> Vec<&str> {
        let mut traces: Vec<&str> = self.rows.iter().map(|row| row.trace.as_str()).collect();
        traces.dedup();
        traces
    }

    /// Returns the rows of a trace.
    pub(super) fn of<'a>(&'a self, trace: &'a str) -> impl Iterator<Item = &'a HitRateRow> {
        self.rows.iter().filter(move |row| row.trace == trace)
    }

    /// Builds a table with a line for each pool and a column for each policy.
    pub(super) fn table(&self, trace: &str) -> Columns {
        let mut names: Vec<String> = Vec::new();
        for row in self.of(trace) {
            if !names.contains(&row.column()) {
                names.push(row.column());
            }
        }
        let mut columns =
            Columns::new(["pool", "blocks"].map(str::to_owned).into_iter().chain(names.clone()));
        for pool in POOLS {
            let rows: Vec<&HitRateRow> = self.of(trace).filter(|row| row.pool == pool).collect();
            let Some(first) = rows.first() else { continue };
            let cell = |name: &String| {
                let row = rows.iter().find(|row| row.column() == *name);
                row.map_or_else(|| "–".to_owned(), |row| format!("{:.2}", row.percent()))
            };
            let head = [format!("1/{pool}"), crate::columns::count(Some(first.blocks))];
            columns.push(head.into_iter().chain(names.iter().map(cell)));
        }
        columns
    }
}

/// Returns the goal that the scan-resistant policy finds at least as much as LRU everywhere.
fn goals(rows: &[HitRateRow]) -> Vec<Goal> {
    let more = rows.iter().filter(|row| row.policy == PolicyId::ScanResistant).filter_map(|row| {
        let same = |other: &&HitRateRow| {
            other.policy == PolicyId::Lru
                && (&other.trace, other.pool, other.shards) == (&row.trace, row.pool, row.shards)
        };
        let lru = rows.iter().find(same)?;
        let at = format!("{}, pool 1/{}, {} shard(s)", row.trace, row.pool, row.shards);
        Some((Some(row.percent() - lru.percent()), Some(at)))
    });
    let name = "scan-resistant: smallest difference of hits to LRU, in percent of the blocks";
    Goal::at_least(name, more, 0.0).into_iter().collect()
}

impl fmt::Display for HitRateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pace = if self.quick { "quick" } else { "full" };
        writeln!(f, "kvmem {} cache policies, {pace} run, {:.0} s", self.version, self.seconds)?;
        for trace in self.traces() {
            let requested = self.of(trace).next().map(|row| row.requested);
            let requested = crate::columns::count(requested);
            writeln!(
                f,
                "\n{trace}: percent of {requested} requested blocks that are found with all before \
                 them"
            )?;
            write!(f, "{}", self.table(trace))?;
        }
        if !self.goals.is_empty() {
            write!(f, "\n{}", crate::columns::goals(&self.goals))?;
        }
        Ok(())
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

//! *Report*: the result of a run, in the form in which it is stored.

use serde::{Deserialize, Serialize};

use super::{Goal, GoalList, Suite};
use crate::machine::Machine;

/// The result of a run: the machine, the settings and every row. `Display` prints the tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Report<S: Suite> {
    /// The suite.
    pub suite: String,
    /// Version of the library.
    pub version: String,
    /// Whether the run did less: shorter loops, fewer repetitions, less memory.
    pub quick: bool,
    /// The settings of the run, and figures that belong to no row.
    #[serde(flatten)]
    pub details: S::Details,
    /// The machine.
    pub machine: Machine,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
    /// The figures.
    pub rows: Vec<S::Row>,
    /// Rows that are absent, with the reasons.
    #[serde(default)]
    pub skipped: Vec<S::Skipped>,
    /// The performance goals, and whether this run meets them.
    pub goals: Vec<Goal>,
}

impl<S: Suite> Report<S> {
    /// Creates the report of a run on this machine, and evaluates the goals.
    pub(super) fn new(
        quick: bool,
        details: S::Details,
        seconds: f64,
        rows: Vec<S::Row>,
        skipped: Vec<S::Skipped>,
    ) -> Self {
        let mut report = Report {
            suite: S::NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            quick,
            details,
            machine: Machine::here(),
            seconds,
            rows,
            skipped,
            goals: Vec::new(),
        };
        report.goals = GoalList::filled(|goals| S::goals(&report, goals));
        report
    }

    /// Returns the length of the run: `quick run` or `full run`, the settings, and the time.
    pub(super) fn length(&self) -> String {
        let pace = if self.quick { "quick" } else { "full" };
        format!("{pace} run, {}, {:.0} s", self.details, self.seconds)
    }
}

/// A row of a suite that every machine can measure in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NothingSkipped {}

impl std::fmt::Display for NothingSkipped {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {}
    }
}

//! *Measured suite*: what a run needs of a suite: its plan, one measurement, and rows made from
//! samples.

use super::Suite;
use super::plan::{Group, Stop};
use crate::progress::Progress;

/// A suite that can run.
pub(crate) trait Measured: Suite {
    /// What to run.
    type Options;
    /// One measurement: a contender in a scenario.
    type Task;
    /// The result of one repetition.
    type Sample;
    /// What measurements need and share.
    type Fixture;
    /// The error of one measurement.
    type Error;

    /// Returns the plan that `options` select.
    fn plan(options: &Self::Options) -> Plan<Self>;

    /// Returns the name of a task in progress reports and errors.
    fn name(task: &Self::Task) -> String;

    /// Prepares the measurement of the group that begins with `task`.
    fn prepare(
        _fixture: &mut Self::Fixture,
        _task: &Self::Task,
        _progress: &mut dyn Progress<Self::Row>,
    ) -> Result<(), StopOf<Self>> {
        Ok(())
    }

    /// Measures once. `rep` is the number of the repetition.
    fn measure(
        fixture: &mut Self::Fixture,
        task: &Self::Task,
        rep: u32,
    ) -> Result<Self::Sample, StopOf<Self>>;

    /// Makes a row from the samples of a task, and notes figures that belong to no row.
    fn row(
        details: &mut Self::Details,
        task: &Self::Task,
        samples: &[Self::Sample],
    ) -> Option<Self::Row>;

    /// Measures figures that belong to no row, after all rows.
    fn finish(_details: &mut Self::Details) {}
}

/// The reason why a group of this suite ends early.
pub(crate) type StopOf<S> = Stop<<S as Suite>::Skipped, <S as Measured>::Error>;

/// The plan of a run.
pub(crate) struct Plan<S: Measured> {
    /// Whether the run does less.
    pub(crate) quick: bool,
    /// The groups, in the order in which they run.
    pub(crate) groups: Vec<Group<S::Task>>,
    /// Rows that this machine cannot measure.
    pub(crate) skipped: Vec<S::Skipped>,
    /// The fixture before the first measurement.
    pub(crate) fixture: S::Fixture,
    /// The settings.
    pub(crate) details: S::Details,
}

/// The error that ended a run early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{task}: {error}")]
pub struct BenchError<E> {
    /// The name of the measurement.
    pub task: String,
    /// The error.
    pub error: E,
}

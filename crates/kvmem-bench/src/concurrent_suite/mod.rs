//! The common part of suites in which several threads share one object: scenarios × contenders ×
//! numbers of threads → rows.
//!
//! A suite defines its scenarios and contenders, one measurement, and the contents of a row
//! ([`SuiteRow`]). This module provides the rest: the plan, the turns, the threads, the report, its
//! table and its plots.
//!
//! 1. *Threads* are bound to processors and all run for the whole of a fixed time. The rate is the
//!    sum of the threads' rates.
//! 2. *Noise.* All measurements of a scenario take turns, which makes contenders and numbers of
//!    threads comparable. Each repetition starts with another measurement, and medians count.

mod html;
mod report;
pub(crate) mod suite;
mod table;
pub(crate) mod thread_loop;

use std::fmt::Display;

pub use self::report::SuiteReport;
pub use crate::names::Named;

/// The options of a run of a suite with scenarios `S` and contenders `C`.
#[derive(Clone, Debug)]
pub struct SuiteOptions<S, C> {
    /// Whether to use shorter and fewer repetitions: seconds instead of minutes.
    pub quick: bool,
    /// Repetitions of each measurement; the median is reported. Unless set, 7, or 3 when quick.
    pub reps: Option<u32>,
    /// Only these scenarios; all when empty.
    pub scenarios: Vec<S>,
    /// Only these contenders; all when empty.
    pub contenders: Vec<C>,
    /// Only these numbers of threads; the suite's usual ones when empty.
    pub threads: Vec<u32>,
}

impl<S, C> Default for SuiteOptions<S, C> {
    /// Returns the options of a full run of everything.
    fn default() -> Self {
        let (scenarios, contenders, threads) = (Vec::new(), Vec::new(), Vec::new());
        SuiteOptions { quick: false, reps: None, scenarios, contenders, threads }
    }
}

/// The error that ended a run early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{scenario} with {contender} on {threads} thread(s): {error}")]
pub struct SuiteBenchError<S, C, E> {
    /// The scenario.
    pub scenario: S,
    /// The contender that ran.
    pub contender: C,
    /// Number of threads.
    pub threads: u32,
    /// The error.
    pub error: E,
}

/// A row of a report: one contender in one scenario on one number of threads, and its presentation.
pub trait SuiteRow: Sized + 'static {
    /// The suite's scenarios.
    type Scenario: Named + Display;
    /// The suite's contenders.
    type Contender: Named + Display;
    /// The meaning of a contender's two cells, in the order of the cells.
    const CELLS: &'static str;
    /// The heading of the second cell; the contender's name is the heading of the first.
    const SECOND: &'static str;
    /// The plots: title, unit, and figure of each.
    const PLOTS: &'static [Plot<Self>];

    /// Returns the scenario.
    fn scenario(&self) -> Self::Scenario;
    /// Returns the contender.
    fn contender(&self) -> Self::Contender;
    /// Returns the number of threads.
    fn threads(&self) -> u32;
    /// Returns its cells in a table.
    fn cells(&self) -> [String; 2];
}

/// A plot of one figure of all rows: title, unit, and the figure.
pub type Plot<R> = (&'static str, &'static str, fn(&R) -> f64);

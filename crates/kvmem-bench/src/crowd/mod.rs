//! Benchmarks of one thing that several threads share: scenarios × contenders × numbers of threads
//! → rows.
//!
//! A suite says what its scenarios and contenders are, how one measurement is made, and what a row
//! shows ([`Line`]). The rest is the same for all and stands here: the plan, the turns, the
//! threads, the report, its table and its plots.
//!
//! 1. *Threads* are bound to processors and all at work for the whole of a fixed time; the rate is
//!    the sum of the threads'.
//! 2. *Noise.* All measurements of a scenario take turns, so that contenders and numbers of threads
//!    can be compared; each repetition starts with another one, and medians count.

mod html;
mod report;
pub(crate) mod shift;
pub(crate) mod suite;
mod table;

use std::fmt::Display;

pub use self::report::Report;
pub use crate::names::Named;

/// What to run, of a suite with scenarios `S` and contenders `C`.
#[derive(Clone, Debug)]
pub struct Options<S, C> {
    /// Shorter and fewer repetitions: some seconds instead of a minute or some.
    pub quick: bool,
    /// Repetitions of each measurement, of which the median counts; 7, or 3 when quick, unless
    /// given.
    pub reps: Option<u32>,
    /// Only these scenarios; all when empty.
    pub scenarios: Vec<S>,
    /// Only these contenders; all when empty.
    pub contenders: Vec<C>,
    /// Only these numbers of threads; the suite's usual ones when empty.
    pub threads: Vec<u32>,
}

impl<S, C> Default for Options<S, C> {
    /// A full run of everything.
    fn default() -> Self {
        let (scenarios, contenders, threads) = (Vec::new(), Vec::new(), Vec::new());
        Options { quick: false, reps: None, scenarios, contenders, threads }
    }
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{scenario} with {contender} on {threads} thread(s): {error}")]
pub struct BenchError<S, C, E> {
    /// What the threads did.
    pub scenario: S,
    /// The contender that ran.
    pub contender: C,
    /// How many threads.
    pub threads: u32,
    /// What happened.
    pub error: E,
}

/// A row of a report: one contender in one scenario on so many threads, and what is shown of it.
pub trait Line: Sized + 'static {
    /// The suite's scenarios.
    type Scenario: Named + Display;
    /// The suite's contenders.
    type Contender: Named + Display;
    /// What the two cells of a contender say, in the order of the cells.
    const CELLS: &'static str;
    /// What stands above the second cell; the contender's name is above the first.
    const SECOND: &'static str;
    /// What is drawn: title, unit, and the figure.
    const PLOTS: &'static [Plot<Self>];

    /// What the threads did.
    fn scenario(&self) -> Self::Scenario;
    /// The contender.
    fn contender(&self) -> Self::Contender;
    /// How many threads.
    fn threads(&self) -> u32;
    /// Its cells in a table.
    fn cells(&self) -> [String; 2];
}

/// A plot of one figure of all rows: title, unit, and the figure.
pub type Plot<R> = (&'static str, &'static str, fn(&R) -> f64);

//! *Suites*: the framework of all benchmarks.
//!
//! A suite describes its contenders and scenarios, one measurement, its goals, and its tables and
//! plots. This module provides the rest:
//!
//! | part | provides |
//! |---|---|
//! | [`Named`] | names of scenarios and contenders, for options and JSON |
//! | `plan.rs` | groups of tasks that take turns |
//! | `runner.rs` | the run: turns, repetitions, progress, skipped rows |
//! | [`Report`] | the result as JSON |
//! | [`Section`], `columns.rs` | tables and plots of a report as data |
//! | `text.rs`, [`Draw`] | the report as text and as a chapter of a page |
//! | [`Goal`] | figures that are compared with limits |
//!
//! A suite implements two traits: [`Suite`] has what a stored report needs, `Measured` what a run
//! needs.

pub(crate) mod columns;
mod details;
mod goal;
mod measured;
mod names;
mod page;
pub(crate) mod plan;
mod report;
mod runner;
mod section;
mod text;

use std::fmt::{Debug, Display};

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::details::{Repetitions, SeededRepetitions};
pub(crate) use self::goal::{Figure, FigureOf, ratios};
pub use self::goal::{Goal, GoalList};
pub use self::measured::BenchError;
pub(crate) use self::measured::{Measured, Plan};
pub use self::names::Named;
pub(crate) use self::names::{chosen, names};
pub use self::page::Draw;
pub use self::report::{NothingSkipped, Report};
pub(crate) use self::runner::run;
pub use self::section::Section;
pub(crate) use self::section::bars;

/// A suite, as far as its reports need it.
pub trait Suite: Sized + 'static {
    /// The name on the command line and in JSON.
    const NAME: &'static str;
    /// A row: one contender in one scenario.
    type Row: Stored;
    /// Rows that a machine cannot measure, and the reason.
    type Skipped: Stored + Display;
    /// The settings of a run, and figures that belong to no row. `Display` shows the settings.
    type Details: Stored + Display;

    /// Adds every goal that the rows of `report` can decide.
    fn goals(report: &Report<Self>, goals: &mut GoalList);

    /// Returns the tables and plots, in order.
    fn sections(report: &Report<Self>) -> Vec<Section>;
}

/// A part of a stored report.
pub trait Stored: Clone + Debug + PartialEq + Serialize + DeserializeOwned {}

impl<T: Clone + Debug + PartialEq + Serialize + DeserializeOwned> Stored for T {}

//! *Suites*: the framework of all benchmarks.
//!
//! A suite is a function. It measures contenders in turns ([`Run::turns`]), which makes a row
//! for each of them: a line of a table, a contender, and its figures. Then it adds its goals, from
//! the rows. The rest is here: the turns, their medians, the tables, the JSON, and the progress
//! bar.

mod args;
mod names;
mod report;
mod run;

pub use self::args::SuiteArgs;
pub use self::names::UnknownNameError;
pub(crate) use self::names::names;
pub use self::report::Report;
pub use self::run::{Figures, Run, Stop, Turns};

/// Whether quick runs take the smallest sizes. The figures of a build without optimization are
/// compared with nothing: its runs only show that every row can be measured.
pub const SMALLEST: bool = cfg!(debug_assertions);

//! How a caller watches a long run. The library itself prints nothing.

use crate::report::Row;

/// Told how far a run has come. All methods do nothing unless they are overridden; `()` is a silent
/// watcher.
///
/// No method is called while a clock runs. `R` is the suite's kind of row.
pub trait Progress<R = Row> {
    /// Once, before anything is measured: how many units of work will be done. A unit is about a
    /// millisecond.
    fn begin(&mut self, _units: u64) {}
    /// A measurement begins.
    fn step(&mut self, _what: &str) {}
    /// A measurement is over; `units` more are done.
    fn advance(&mut self, _units: u64) {}
    /// A row is complete.
    fn row(&mut self, _row: &R) {}
}

impl<R> Progress<R> for () {}

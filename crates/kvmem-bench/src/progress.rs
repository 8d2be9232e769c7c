//! The progress of a long run. The library itself prints nothing.

use crate::report::OffsetRow;

/// Receives the progress of a run. All methods do nothing unless they are overridden; `()` ignores
/// everything.
///
/// No method is called while a clock runs. `R` is the suite's row type.
pub trait Progress<R = OffsetRow> {
    /// Called once before the first measurement with the units of work of the whole run. A unit is
    /// about a millisecond.
    fn begin(&mut self, _units: u64) {}
    /// Called when a measurement begins.
    fn step(&mut self, _what: &str) {}
    /// Called when a measurement has ended; `units` more are done.
    fn advance(&mut self, _units: u64) {}
    /// Called when a row is complete.
    fn row(&mut self, _row: &R) {}
}

impl<R> Progress<R> for () {}

//! The progress of a long run. The library itself prints nothing.

/// Receives the progress of a run. All methods do nothing unless they are overridden; `()` ignores
/// everything.
///
/// No method is called while a clock runs. `R` is the suite's row type.
pub trait Progress<R> {
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

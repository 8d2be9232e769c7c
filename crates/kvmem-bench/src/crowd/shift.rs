//! *Shift*: what a thread of a crew does: some steps to warm up, then as many as the time allows.

use crate::crew::Place;

/// What a thread did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shift {
    calls: u64,
    nanoseconds: f64,
}

impl Shift {
    /// Works at a place whose tables are there. `steps` makes some calls and returns how many; it
    /// is told whether the clock runs, which is looked at between two of them. It runs `warm`
    /// times before that.
    #[inline]
    pub(crate) fn work<E>(
        place: &Place<'_>,
        warm: u32,
        mut steps: impl FnMut(bool) -> Result<u64, E>,
    ) -> Result<Shift, E> {
        place.ready();
        for _ in 0..warm {
            steps(false)?;
        }
        let mut calls = 0;
        let start = place.start();
        loop {
            calls += steps(true)?;
            if !place.goes_on() {
                break;
            }
        }
        let nanoseconds = start.elapsed().as_nanos() as f64;
        place.done();
        Ok(Shift { calls, nanoseconds })
    }
}

/// Million calls a second of all threads together; `None` if there were none.
pub(crate) fn mops(shifts: &[Shift]) -> Option<f64> {
    let per_ns: f64 =
        shifts.iter().map(|shift| shift.calls as f64 / shift.nanoseconds.max(1.0)).sum();
    (per_ns > 0.0).then_some(per_ns * 1e3)
}

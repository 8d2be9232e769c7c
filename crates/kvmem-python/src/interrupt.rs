//! *Interrupt*: an exception of a lower tier in Python that is meant for the caller of the cache.
//!
//! The library evicts during an insertion, which must not fail for a reason of the tier. Therefore
//! an exception of a tier goes to `sys.unraisablehook`. One that is no `Exception`, such as
//! `KeyboardInterrupt`, is kept until the call of the cache is over, and raised there, unless a
//! thread of the library has called the tier.

use std::cell::Cell;
use std::time::Duration;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

/// How long a wait lasts before signals are looked for.
pub(crate) const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    /// Exception of the tier for the caller of the cache, which waits in this thread.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
    /// Whether this thread is in a call of a cache, which raises such exceptions.
    static HAS_CALLER: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether an exception waits for the caller of the cache.
pub(crate) fn is_raised() -> bool {
    let raised = RAISED.take();
    let is_raised = raised.is_some();
    RAISED.set(raised);
    is_raised
}

/// Keeps an exception that is meant for the caller; reports the others.
pub(crate) fn raise(tier: &Bound<'_, PyAny>, error: PyErr) {
    let py = tier.py();
    if error.is_instance_of::<PyException>(py) || is_raised() || !HAS_CALLER.get() {
        error.write_unraisable(py, Some(tier));
    } else {
        RAISED.set(Some(error));
    }
}

/// Runs a call of the library that may evict, and raises what the tier raised for the caller.
pub(crate) fn evicting<T>(work: impl FnOnce() -> T) -> PyResult<T> {
    // A tier may call another cache, which must raise only its own exceptions.
    let outer = RAISED.take();
    let had_caller = HAS_CALLER.replace(true);
    let done = work();
    HAS_CALLER.set(had_caller);
    match RAISED.replace(outer) {
        None => Ok(done),
        Some(error) => Err(error),
    }
}

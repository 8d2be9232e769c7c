//! *Lower tier*: the Python object that receives evicted values.
//!
//! The cache object owns the reference, where the garbage collector sees it. The closure in the
//! library borrows it through this type. Once the cache object is gone, or cleared, evicted values
//! are dropped.
//!
//! **Errors.** The library evicts during an insertion, which must not fail for a reason of the
//! tier. Therefore an exception of `put` costs the value, and not the insertion: it goes to
//! `sys.unraisablehook`, the tier is told to `invalidate` the key, and the value is counted. An
//! exception that is no `Exception`, such as `KeyboardInterrupt`, is meant for the caller. It is
//! kept until the call of the cache is over, and raised there, unless a thread of the library has
//! called the tier. Further values of that call are
//! dropped, counted and invalidated, without a call of `put` that could last.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use kvmem::cache::Pinned;
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;

use crate::cache_key::OwnedKey;
use crate::collect::{Link, Traverse};
use crate::kv_cache::PyPinned;
use crate::pool::PyPool;
use crate::process;

thread_local! {
    /// Exception of the tier for the caller of the cache, which waits in this thread.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
    /// Whether this thread is in a call of a cache, which raises such exceptions.
    static HAS_CALLER: Cell<bool> = const { Cell::new(false) };
}

/// The lower tier of a cache.
pub(crate) struct LowerTier {
    pub(crate) object: Link<PyAny>,
    /// Values that the tier did not store, but invalidated. The library counts the values whose
    /// key was not invalidated.
    dropped: AtomicU64,
}

/// The tier neither stored a value nor invalidated its key.
pub(crate) struct Failed;

impl LowerTier {
    pub(crate) fn new(object: Py<PyAny>) -> LowerTier {
        LowerTier { object: Link::new(Some(object)), dropped: AtomicU64::new(0) }
    }

    /// Returns the number of values that were dropped because `put` raised.
    pub(crate) fn dropped(&self) -> u64 {
        // Relaxed: a statistic, which orders nothing.
        self.dropped.load(Ordering::Relaxed)
    }

    /// Gives an evicted value to the tier, or makes it invalidate the key. The library calls this
    /// without a lock.
    pub(crate) fn put(&self, pinned: Pinned<OwnedKey>) -> Result<(), Failed> {
        process::call(|py| self.put_attached(py, pinned)).unwrap_or(Err(Failed))
    }

    fn put_attached(&self, py: Python<'_>, pinned: Pinned<OwnedKey>) -> Result<(), Failed> {
        let Some(tier) = self.object.get(py) else { return Err(Failed) };
        let tier = tier.bind(py);
        let name = pinned.key().clone();
        if is_raised() {
            drop(pinned);
        } else {
            match tier.call_method1("put", (PyPinned::new(pinned),)) {
                Ok(_) => return Ok(()),
                Err(error) => raise(tier, error),
            }
        }
        match tier.call_method1("invalidate", (&name,)) {
            Ok(_) => {
                // Relaxed: a statistic, which orders nothing.
                self.dropped.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                raise(tier, error);
                Err(Failed)
            }
        }
    }
}

impl Traverse for std::sync::Arc<LowerTier> {
    fn traverse(&self, visit: &pyo3::gc::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        self.object.traverse(visit)
    }
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

/// Returns the lower tier that an object makes for a cache on `pool`.
pub(crate) fn of<'py>(
    object: &Bound<'py, PyAny>,
    pool: &Bound<'py, PyPool>,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(make) = object.getattr_opt("__lower_tier__")? else {
        let name = object.get_type().name()?;
        let message = format!(
            "lower_tier: {name} has no method __lower_tier__(pool), which returns the lower tier: \
             see kvmem.lower_tier"
        );
        return Err(PyTypeError::new_err(message));
    };
    make.call1((pool,))
}

/// The methods of a tier that is asked for one key after the other.
pub(crate) const METHODS: [&str; 5] = ["put", "fetch", "invalidate", "clear", "close"];

/// Checks that a lower tier has these methods.
pub(crate) fn check(tier: &Bound<'_, PyAny>, methods: &[&str]) -> PyResult<()> {
    for method in methods {
        if !tier.getattr_opt(*method)?.is_some_and(|method| method.is_callable()) {
            let name = tier.get_type().name()?;
            let message = format!(
                "lower_tier: {name}, which __lower_tier__ returned, has no method {method}: see \
                 kvmem.lower_tier"
            );
            return Err(PyTypeError::new_err(message));
        }
    }
    Ok(())
}

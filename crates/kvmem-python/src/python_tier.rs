//! *Python tier*: a lower tier that is an object of Python: see `kvmem.tier.Tier`.
//!
//! The cache object owns the reference to it, where the garbage collector sees it, and the library
//! borrows it through this type. Once the cache object is gone, or cleared, evicted values are
//! dropped. Threads of the library call it, too: writers of a queue, and those that fetch in the
//! background. They attach to the interpreter for each call.
//!
//! **Errors.** Reads are misses if the tier raises. Values that `store` did not take are lost: the
//! tier is told to `remove` their keys, and they are counted. The exception goes to
//! `sys.unraisablehook`, or to the caller of the cache as an [interrupt](crate::interrupt); further
//! values of that call are removed and counted, without a call of `store` that could last. What
//! `remove` and `clear` raise is the error of the call that removes.
//!
//! **Memory.** `fetch_into` gets views of memory that is the cache's. They are released when it
//! returns. If the tier has exported one of them, the cache could not use the memory any more, so
//! the call waits until the tier drops the export.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kvmem::cache::Pinned;
use kvmem::tier::{BoxError, Lookup, StoreOutcome, Tier, TierHit, TierRead, TierValue};
use kvmem_tier::TierError;
use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::cache_key::OwnedKey;
use crate::collect::{Link, Traverse};
use crate::disk_key::key_of_bytes;
use crate::error;
use crate::interrupt::{is_raised, raise};
use crate::pinned::PyPinned;
use crate::pool::PyPool;
use crate::process;

/// The methods that such a tier has.
const METHODS: [&str; 6] = ["store", "ask", "fetch_into", "remove", "clear", "close"];

/// A lower tier in Python, as the library calls it.
pub(crate) struct PythonTier {
    pub(crate) object: Link<PyAny>,
    /// Values that the tier did not store, but invalidated.
    dropped: AtomicU64,
}

/// The reason why a call of the tier failed.
#[derive(Debug)]
pub(crate) enum PythonTierError {
    /// The cache object was dropped, or the interpreter is ending.
    Gone,
    /// It raised `error`. The text is made while the thread is attached.
    Raised { text: String, error: PyErr },
}

impl fmt::Display for PythonTierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PythonTierError::Gone => f.write_str(
                "the lower tier cannot be called any more: its cache is gone, or the process ends",
            ),
            PythonTierError::Raised { text, .. } => f.write_str(text),
        }
    }
}

impl Error for PythonTierError {}

impl PythonTier {
    /// Returns the tier that an object makes for a cache on `pool`.
    pub(crate) fn of(
        object: &Bound<'_, PyAny>,
        pool: &Bound<'_, PyPool>,
    ) -> PyResult<Arc<PythonTier>> {
        let lacks = |what: String| {
            let where_to_read = "kvmem.tier has the methods of a tier, and \
                                 docs/how-to/lower-tier.md an example";
            PyTypeError::new_err(format!("lower_tier: {what}: {where_to_read}"))
        };
        let Some(make) = object.getattr_opt("__lower_tier__")? else {
            let name = object.get_type().name()?;
            let what = "has no method __lower_tier__(pool), which returns the lower tier";
            return Err(lacks(format!("{name} {what}")));
        };
        let tier = make.call1((pool,))?;
        for method in METHODS {
            if !tier.getattr_opt(method)?.is_some_and(|method| method.is_callable()) {
                let name = tier.get_type().name()?;
                let what = format!("which __lower_tier__ returned, has no method {method}");
                return Err(lacks(format!("{name}, {what}")));
            }
        }
        let object = Link::new(Some(tier.unbind()));
        Ok(Arc::new(PythonTier { object, dropped: AtomicU64::new(0) }))
    }

    /// Returns the number of values that were dropped because `store` raised.
    pub(crate) fn dropped(&self) -> u64 {
        // Relaxed: a statistic, which orders nothing.
        self.dropped.load(Ordering::Relaxed)
    }

    /// Calls the tier. The library holds no lock that a thread with the GIL waits for.
    fn call<T>(
        &self,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, PythonTierError> {
        let called = process::call(|py| {
            let tier = self.object.get(py)?.into_bound(py);
            let raised = |error: PyErr| PythonTierError::Raised { text: error.to_string(), error };
            Some(call(&tier).map_err(raised))
        });
        called.flatten().unwrap_or(Err(PythonTierError::Gone))
    }

    fn store_attached(
        &self,
        tier: &Bound<'_, PyAny>,
        values: &[TierValue<'_>],
    ) -> PyResult<Vec<Result<StoreOutcome, BoxError>>> {
        let py = tier.py();
        if !is_raised() {
            let pin = |value: &TierValue<'_>| {
                let pinned = value.downcast::<Pinned<OwnedKey>>();
                Bound::new(py, PyPinned::new(pinned.expect("a cache of Python stores").clone()))
            };
            let pins = values.iter().map(pin).collect::<PyResult<Vec<_>>>()?;
            match tier.call_method1("store", (PyList::new(py, pins)?,)) {
                Ok(_) => return Ok(values.iter().map(|_| Ok(StoreOutcome::Stored)).collect()),
                Err(error) => raise(tier, error),
            }
        }
        let keys: Vec<&[u8]> = values.iter().map(|value| value.key).collect();
        let removed = PythonTier::remove_attached(tier, &keys);
        if removed.is_ok() {
            // Relaxed: a statistic, which orders nothing.
            self.dropped.fetch_add(values.len() as u64, Ordering::Relaxed);
        }
        let text = removed.map_err(|error| {
            let text = error.to_string();
            raise(tier, error);
            text
        });
        let outcome = |_| match &text {
            Ok(()) => Ok(StoreOutcome::NotStored),
            Err(text) => Err(text.clone().into()),
        };
        Ok(values.iter().map(outcome).collect())
    }

    fn remove_attached(tier: &Bound<'_, PyAny>, keys: &[&[u8]]) -> PyResult<()> {
        tier.call_method1("remove", (python_keys(tier.py(), keys.iter().copied())?,)).map(drop)
    }

    fn fetch_attached(
        tier: &Bound<'_, PyAny>,
        reads: &mut [TierRead<'_>],
    ) -> PyResult<Vec<Option<usize>>> {
        let py = tier.py();
        let keys = python_keys(py, reads.iter().map(|read| read.key))?;
        let views = Vec::with_capacity(reads.len());
        let mut lent = LentViews { views, borrower: "fetch_into" };
        for read in reads.iter_mut() {
            lent.views.push(view_of(py, read.into)?);
        }
        let views = PyList::new(py, &lent.views)?;
        let found = tier.call_method1("fetch_into", (keys, views))?;
        checked(&found, reads.len(), "fetch_into")
    }
}

/// Returns keys as a list of Python.
fn python_keys<'py, 'a>(
    py: Python<'py>,
    keys: impl Iterator<Item = &'a [u8]>,
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, &keys.map(key_of_bytes).collect::<Vec<OwnedKey>>())
}

/// Returns the results of a method, one for each key.
fn checked(found: &Bound<'_, PyAny>, keys: usize, method: &str) -> PyResult<Vec<Option<usize>>> {
    let found = found.extract::<Vec<Option<usize>>>()?;
    if found.len() == keys {
        return Ok(found);
    }
    let message = format!("{method} returned {} results for {keys} keys", found.len());
    Err(PyTypeError::new_err(message))
}

/// Returns a view of memory, for writing. The caller releases it before the memory is used again.
fn view_of<'py>(py: Python<'py>, memory: &mut [u8]) -> PyResult<Bound<'py, PyAny>> {
    let (at, len) = (memory.as_mut_ptr().cast(), memory.len() as ffi::Py_ssize_t);
    // SAFETY: the bytes are mapped and writable, and nobody else uses them until the view is
    // released, which the caller does. The thread is attached. The result is a new reference, or
    // NULL with an exception set.
    unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyMemoryView_FromMemory(at, len, ffi::PyBUF_WRITE))
    }
}

/// Views of the cache's memory, which are released on drop.
pub(crate) struct LentViews<'py> {
    pub(crate) views: Vec<Bound<'py, PyAny>>,
    /// The name of the callable that has them, for messages.
    pub(crate) borrower: &'static str,
}

impl Drop for LentViews<'_> {
    fn drop(&mut self) {
        for view in self.views.drain(..) {
            let mut is_first = true;
            // A view with exports is still in use.
            while let Err(error) = view.call_method0("release") {
                if !error.is_instance_of::<PyBufferError>(view.py()) {
                    break;
                }
                if std::mem::take(&mut is_first) {
                    let message = format!(
                        "{} has kept a view of the memory that it was given: the cache waits \
                         until it is dropped",
                        self.borrower
                    );
                    PyBufferError::new_err(message).write_unraisable(view.py(), Some(&view));
                }
                view.py().detach(|| thread::sleep(Duration::from_millis(5)));
            }
        }
    }
}

impl Tier for PythonTier {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        self.call(|tier| self.store_attached(tier, values)).unwrap_or_else(|error| {
            let text = error.to_string();
            values.iter().map(|_| Err(text.clone().into())).collect()
        })
    }

    /// Python may wait for anything, so only [`ask`](Tier::ask) calls it.
    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        vec![Lookup::Unknown; keys.len()]
    }

    fn knows_all(&self) -> bool {
        false
    }

    fn ask(&self, keys: &[&[u8]]) -> Vec<Option<u64>> {
        let found = self.call(|tier| {
            let found = python_keys(tier.py(), keys.iter().copied())
                .and_then(|list| tier.call_method1("ask", (list,)))
                .and_then(|found| checked(&found, keys.len(), "ask"));
            Ok(found.unwrap_or_else(|error| {
                raise(tier, error);
                vec![None; keys.len()]
            }))
        });
        let found = found.unwrap_or_else(|_| vec![None; keys.len()]);
        found.into_iter().map(|len| len.map(|len| len as u64)).collect()
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        let found = self.call(|tier| {
            Ok(PythonTier::fetch_attached(tier, reads).unwrap_or_else(|error| {
                raise(tier, error);
                vec![None; reads.len()]
            }))
        });
        let found = found.unwrap_or_else(|_| vec![None; reads.len()]);
        let is_whole = |len: Option<usize>, read: &TierRead<'_>| len == Some(read.into.len());
        let hit = |(len, read)| is_whole(len, read).then(TierHit::default);
        found.into_iter().zip(&*reads).map(hit).collect()
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        Ok(self.call(|tier| PythonTier::remove_attached(tier, keys))?)
    }

    /// Asks `__len__`, which a tier may have.
    fn values(&self) -> u64 {
        let len = self.call(|tier| {
            let len = match tier.getattr_opt("__len__") {
                Ok(Some(_)) => tier.len(),
                Ok(None) => Ok(0),
                Err(error) => Err(error),
            };
            Ok(len.unwrap_or_else(|error| {
                raise(tier, error);
                0
            }))
        });
        len.map_or(0, |len| len as u64)
    }

    fn clear(&self) -> Result<(), BoxError> {
        Ok(self.call(|tier| tier.call_method0("clear").map(drop))?)
    }
}

impl Traverse for Vec<Arc<PythonTier>> {
    fn traverse(&self, visit: &pyo3::gc::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        self.iter().try_for_each(|tier| tier.object.traverse(visit))
    }
}

/// Converts the error of a cache's lower tier.
#[cold]
pub(crate) fn lower_tier_error(py: Python<'_>, error: &BoxError) -> PyErr {
    if let Some(error) = error.downcast_ref::<TierError>() {
        return error::tier(py, error);
    }
    match error.downcast_ref::<PythonTierError>() {
        Some(PythonTierError::Raised { error, .. }) => error.clone_ref(py),
        _ => PyRuntimeError::new_err(error.to_string()),
    }
}

//! *Hold*: what others rely on stays as it is.
//!
//! A pool has no bytes to be viewed, and a batch none that lie in one piece. Yet there are those
//! who rely on the memory of either: an engine that has registered it, a transfer under way. They
//! have a hold, which is counted as a view is.

use std::sync::{Mutex, PoisonError, TryLockError};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::block::PyBlockBatch;
use crate::collect::{Traverse, collected};
use crate::pool::PyPool;

/// What is held.
enum What {
    Pool(Py<PyPool>),
    Batch(Py<PyBlockBatch>),
}

impl What {
    fn release(&self) {
        match self {
            What::Pool(pool) => pool.get().held.release(),
            What::Batch(batch) => batch.get().held.release(),
        }
    }
}

impl Traverse for Mutex<Option<What>> {
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let visit = |what: &Option<What>| match what {
            Some(What::Pool(pool)) => visit.call(pool),
            Some(What::Batch(batch)) => visit.call(batch),
            None => Ok(()),
        };
        match self.try_lock() {
            Ok(what) => visit(&what),
            Err(TryLockError::Poisoned(what)) => visit(&what.into_inner()),
            // The lock is held with the GIL alone, and no Python runs under it.
            Err(TryLockError::WouldBlock) => Ok(()),
        }
    }
}

/// Keeps a pool or a batch unchanged until the hold is released or dropped.
#[pyclass(name = "Hold", module = "kvmem", frozen, weakref)]
pub(crate) struct PyHold {
    what: Mutex<Option<What>>,
}

collected!(PyHold { what }, |it, _| it.release());

impl PyHold {
    fn new(what: What) -> PyHold {
        PyHold { what: Mutex::new(Some(what)) }
    }

    pub(crate) fn pool(pool: &Bound<'_, PyPool>) -> PyResult<PyHold> {
        pool.get().held.view(|_| ())?;
        Ok(PyHold::new(What::Pool(pool.clone().unbind())))
    }

    pub(crate) fn batch(batch: &Bound<'_, PyBlockBatch>) -> PyResult<PyHold> {
        batch.get().held.view(|_| ())?;
        Ok(PyHold::new(What::Batch(batch.clone().unbind())))
    }

    fn take(&self) -> Option<What> {
        self.what.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl PyHold {
    /// Releases the hold. A second call does nothing.
    fn release(&self) {
        if let Some(what) = self.take() {
            what.release();
        }
    }

    /// Whether the hold has been released.
    #[getter]
    fn released(&self) -> bool {
        self.what.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, _exc: &Bound<'_, PyTuple>) {
        self.release();
    }

    fn __repr__(&self) -> &'static str {
        if self.released() { "<kvmem.Hold, released>" } else { "<kvmem.Hold>" }
    }
}

impl Drop for PyHold {
    fn drop(&mut self) {
        self.release();
    }
}

//! *Hold*: keeps a pool or a batch unchanged while others rely on its memory.
//!
//! A pool has no bytes to view, and those of a batch are not contiguous. An engine that has
//! registered the memory of either, or a running transfer, still relies on it. Such a user has a
//! hold, which counts like a view.

use std::sync::{Mutex, PoisonError, TryLockError};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::block::PyBlockBatch;
use crate::collect::{Traverse, collected};
use crate::pool::PyPool;

/// A held object.
enum Target {
    Pool(Py<PyPool>),
    Batch(Py<PyBlockBatch>),
}

impl Target {
    fn release(&self) {
        match self {
            Target::Pool(pool) => pool.get().held.release(),
            Target::Batch(batch) => batch.get().held.release(),
        }
    }
}

impl Traverse for Mutex<Option<Target>> {
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let visit = |what: &Option<Target>| match what {
            Some(Target::Pool(pool)) => visit.call(pool),
            Some(Target::Batch(batch)) => visit.call(batch),
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

#[doc = doc!("Hold")]
#[pyclass(name = "Hold", module = "kvmem", frozen, weakref)]
pub(crate) struct PyHold {
    what: Mutex<Option<Target>>,
}

collected!(PyHold { what }, |it, _| it.release());

impl PyHold {
    fn new(what: Target) -> PyHold {
        PyHold { what: Mutex::new(Some(what)) }
    }

    pub(crate) fn pool(pool: &Bound<'_, PyPool>) -> PyResult<PyHold> {
        pool.get().held.view(|_| ())?;
        Ok(PyHold::new(Target::Pool(pool.clone().unbind())))
    }

    pub(crate) fn batch(batch: &Bound<'_, PyBlockBatch>) -> PyResult<PyHold> {
        batch.get().held.view(|_| ())?;
        Ok(PyHold::new(Target::Batch(batch.clone().unbind())))
    }

    fn take(&self) -> Option<Target> {
        self.what.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl PyHold {
    #[doc = doc!("Hold.release")]
    fn release(&self) {
        if let Some(what) = self.take() {
            what.release();
        }
    }

    #[doc = doc!("Hold.released")]
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

#[pymethods]
impl PyPool {
    #[doc = doc!("Pool.hold")]
    fn hold(slf: &Bound<'_, Self>) -> PyResult<PyHold> {
        PyHold::pool(slf)
    }
}

#[pymethods]
impl PyBlockBatch {
    #[doc = doc!("BlockBatch.hold")]
    fn hold(slf: &Bound<'_, Self>) -> PyResult<PyHold> {
        PyHold::batch(slf)
    }
}

//! *Admit*: a callable of Python that chooses the evicted values that a disk tier writes.
//!
//! The object of the tier owns the reference to it, and the policy in the library borrows it, so
//! the garbage collector frees a cycle through the callable. Threads of the library call it, too.
//! Each call attaches to the interpreter. No thread waits for the order of a key while it has the
//! GIL, because every call of the library that changes a tier runs without it.
//!
//! If the callable raises, the value is not admitted. The exception goes where that of a
//! [tier in Python](crate::python_tier) goes.

use std::sync::Arc;

use kvmem_tier::{Admission, AdmissionPolicy};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::collect::{Link, Traverse};
use crate::disk_key::key_of_bytes;
use crate::error::{self, ArgumentError};
use crate::interrupt::{is_raised, raise};
use crate::process;
use crate::python_tier::LentViews;

/// A callable that returns whether an evicted value is to be written.
pub(crate) struct Admit(pub(crate) Link<PyAny>);

impl Traverse for Arc<Admit> {
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.traverse(visit)
    }
}

/// The callable as the policy of a tier.
struct AdmitPolicy(Arc<Admit>);

impl AdmissionPolicy for AdmitPolicy {
    fn admits(&self, key: &[u8], value: &[u8]) -> bool {
        let admits = process::call(|py| {
            let callable = self.0.0.get(py)?.into_bound(py);
            // An exception is on its way to the caller: no more Python runs before it arrives.
            if is_raised() {
                return None;
            }
            let answer = call(&callable, key, value);
            answer.map_err(|error| raise(&callable, error)).ok()
        });
        admits.flatten().unwrap_or(false)
    }
}

fn call(callable: &Bound<'_, PyAny>, key: &[u8], value: &[u8]) -> PyResult<bool> {
    let py = callable.py();
    let view = view_of(py, value)?;
    let _lent = LentViews { views: vec![view.clone()], borrower: "admission" };
    callable.call1((&key_of_bytes(key), view))?.is_truthy()
}

/// Returns a read-only view of a value. The caller releases it before the value is gone.
fn view_of<'py>(py: Python<'py>, value: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let (at, len) = (value.as_ptr().cast_mut().cast(), value.len() as ffi::Py_ssize_t);
    // SAFETY: the bytes are mapped, and nobody writes to them until the view is released, which the
    // caller does. The view is read-only. The thread is attached. The result is a new reference, or
    // NULL with an exception set.
    unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyMemoryView_FromMemory(at, len, ffi::PyBUF_READ))
    }
}

/// The argument `admission`: a word, or a callable.
pub(crate) enum AdmissionArgument {
    Word(String),
    Callable(Arc<Admit>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for AdmissionArgument {
    type Error = ArgumentError;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> Result<AdmissionArgument, ArgumentError> {
        if let Ok(word) = given.cast::<PyString>() {
            return Ok(AdmissionArgument::Word(word.to_str()?.to_owned()));
        }
        if given.is_callable() {
            let link = Link::new(Some(given.to_owned().unbind()));
            return Ok(AdmissionArgument::Callable(Arc::new(Admit(link))));
        }
        let name = given.get_type().name()?;
        Err(PyTypeError::new_err(format!(
            "give \"all\", \"second_eviction\", or a callable that accepts (key, value), not {name}"
        ))
        .into())
    }
}

impl AdmissionArgument {
    /// Returns the default: all values.
    pub(crate) fn all() -> AdmissionArgument {
        AdmissionArgument::Word("all".to_owned())
    }

    /// Returns the callable, which the object of the tier owns.
    pub(crate) fn admit(&self) -> Option<Arc<Admit>> {
        match self {
            AdmissionArgument::Word(_) => None,
            AdmissionArgument::Callable(admit) => Some(Arc::clone(admit)),
        }
    }

    /// Converts the argument.
    pub(crate) fn admission(self, py: Python<'_>) -> PyResult<Admission> {
        match self {
            AdmissionArgument::Callable(admit) => Ok(Admission::custom(AdmitPolicy(admit))),
            AdmissionArgument::Word(word) => match &*word {
                "all" => Ok(Admission::All),
                "second_eviction" => Ok(Admission::SecondEviction),
                other => {
                    let words = "all or second_eviction, or a callable";
                    Err(error::bad_value(py, format!("admission is {other:?}: give {words}")))
                }
            },
        }
    }
}

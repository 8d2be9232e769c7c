//! *Elements* of an argument that is an iterable.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyIterator, PyString};

/// Returns the elements of the argument `name`, each of which is one of `what`. A text and bytes
/// are errors: that of one key is often meant as the key, and its letters as keys never. So is what
/// cannot be iterated over.
pub(crate) fn elements<'py>(
    given: &Bound<'py, PyAny>,
    name: &str,
    what: &str,
) -> PyResult<Bound<'py, PyIterator>> {
    let is_text = given.is_instance_of::<PyString>()
        || given.is_instance_of::<PyBytes>()
        || given.is_instance_of::<PyByteArray>();
    let iterates = || Ok::<_, PyErr>(given.hasattr("__iter__")? || given.hasattr("__getitem__")?);
    if is_text || !iterates()? {
        let kind = given.get_type().name()?;
        let message =
            format!("{name} is an iterable of {what}, such as a list, not one of type {kind}");
        return Err(PyTypeError::new_err(message));
    }
    given.try_iter()
}

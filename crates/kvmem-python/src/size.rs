//! *Size*: a number of bytes, given as an `int` or as a text such as `"64GiB"`.

use kvmem::pool::PoolSize;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::{self, ArgumentError};
use crate::number::plain;

/// A number of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(pub(crate) u64);

impl Size {
    /// Converts the number to an address-sized one.
    pub(crate) fn bytes(self) -> usize {
        // The library supports no 32-bit machines; there, larger sizes fail as too large.
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Size {
    type Error = ArgumentError;

    #[inline]
    fn extract(given: Borrowed<'a, 'py, PyAny>) -> Result<Size, ArgumentError> {
        match given.extract::<u64>() {
            Ok(bytes) => Ok(Size(bytes)),
            Err(error) => Ok(read(given, error)?),
        }
    }
}

#[doc = doc!("parse_size")]
#[pyfunction]
pub(crate) fn parse_size(
    py: Python<'_>,
    #[pyo3(from_py_with = plain)] text: &str,
) -> PyResult<usize> {
    PoolSize::from(text).bytes().map_err(|error| error::pool(py, &error))
}

#[cold]
fn read(given: Borrowed<'_, '_, PyAny>, error: PyErr) -> PyResult<Size> {
    let py = given.py();
    if let Ok(text) = given.cast::<PyString>() {
        let text = text.to_str()?;
        return match PoolSize::from(text).bytes() {
            Ok(bytes) => Ok(Size(bytes as u64)),
            Err(error) => Err(error::pool(py, &error)),
        };
    }
    if error.is_instance_of::<PyOverflowError>(py) {
        let message =
            format!("{} is no size: give a number of bytes from 0 to 2**64 - 1", given.str()?);
        let limit = if given.lt(0)? { 0 } else { u64::MAX };
        return Err(error::bad_number(py, message, &*given, limit));
    }
    if error.is_instance_of::<PyTypeError>(py) {
        let name = given.get_type().name()?;
        let message = format!("a size is an int or a str such as \"64GiB\", not {name}");
        return Err(PyTypeError::new_err(message));
    }
    Err(error)
}

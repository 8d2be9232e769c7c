//! *Number*: arguments that are numbers, checked under the name that the caller knows.
//!
//! PyO3 converts an `int` before a function begins, and raises an `OverflowError` that names
//! neither the argument nor its bounds. Therefore a function accepts numbers of any size and
//! converts them itself. The exception is then an `InvalidArgumentError` with the name, the value
//! and the limit. An argument that is no number is a `TypeError`, to which PyO3 adds the name.

use std::ffi::c_int;
use std::ops::RangeInclusive;
use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::error::{self, ArgumentError};

/// An `int`, or an object with `__index__`. Numbers that do not fit in an unsigned 64-bit integer
/// stay Python objects.
pub(crate) struct Int<'py>(Result<u64, Bound<'py, PyAny>>);

impl<'a, 'py> FromPyObject<'a, 'py> for Int<'py> {
    type Error = ArgumentError;

    #[inline]
    fn extract(given: Borrowed<'a, 'py, PyAny>) -> Result<Int<'py>, ArgumentError> {
        match given.extract::<u64>() {
            Ok(number) => Ok(Int(Ok(number))),
            Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => {
                Ok(Int(Err(given.to_owned())))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl<'py> Int<'py> {
    /// Makes a default number.
    pub(crate) fn usual(number: u64) -> Int<'py> {
        Int(Ok(number))
    }

    /// Returns the number if it is within bounds.
    pub(crate) fn within(
        self,
        py: Python<'py>,
        name: &str,
        bounds: RangeInclusive<u64>,
    ) -> PyResult<u64> {
        match self.0 {
            Ok(number) if bounds.contains(&number) => Ok(number),
            Ok(number) => Err(beyond(py, name, number.into_pyobject(py)?.as_any(), &bounds)),
            Err(given) => Err(beyond(py, name, &given, &bounds)),
        }
    }

    /// Converts a length, a count or an index.
    pub(crate) fn index(self, py: Python<'py>, name: &str) -> PyResult<usize> {
        // No object has more bytes than half the address space.
        self.within(py, name, 0..=u64::MAX)
            .map(|number| usize::try_from(number).unwrap_or(usize::MAX))
    }

    pub(crate) fn u64(self, py: Python<'py>, name: &str) -> PyResult<u64> {
        self.within(py, name, 0..=u64::MAX)
    }

    pub(crate) fn u32(self, py: Python<'py>, name: &str) -> PyResult<u32> {
        self.within(py, name, 0..=u64::from(u32::MAX))
            .map(|number| u32::try_from(number).unwrap_or(u32::MAX))
    }

    /// Converts the number of a descriptor.
    pub(crate) fn fd(self, py: Python<'py>) -> PyResult<c_int> {
        let given = match self.0 {
            Ok(number) => match c_int::try_from(number) {
                Ok(fd) => return Ok(fd),
                Err(_) => number.into_pyobject(py)?.into_any(),
            },
            Err(given) => given,
        };
        let (low, high) = (0, c_int::MAX);
        let limit = if given.lt(0)? { low } else { high };
        let message =
            format!("fd is {given}: give an open descriptor, a number from {low} to {high}");
        Err(error::bad_descriptor(py, message, &given, Some(limit), None))
    }
}

/// Makes the error of a number that is out of bounds.
#[cold]
fn beyond<'py>(
    py: Python<'py>,
    name: &str,
    given: &Bound<'py, PyAny>,
    bounds: &RangeInclusive<u64>,
) -> PyErr {
    let (low, high) = (*bounds.start(), *bounds.end());
    let limit = if given.lt(low).unwrap_or(false) { low } else { high };
    let high = if high == u64::MAX { "2**64 - 1".to_owned() } else { high.to_string() };
    error::bad_number(
        py,
        format!("{name} is {given}: give a number from {low} to {high}"),
        given,
        limit,
    )
}

/// An `int` of 63 bits and a sign.
pub(crate) struct Signed(pub(crate) i64);

impl<'a, 'py> FromPyObject<'a, 'py> for Signed {
    type Error = ArgumentError;

    #[inline]
    fn extract(given: Borrowed<'a, 'py, PyAny>) -> Result<Signed, ArgumentError> {
        match given.extract::<i64>() {
            Ok(number) => Ok(Signed(number)),
            Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => {
                let limit = if given.lt(0)? { i64::MIN } else { i64::MAX };
                let message = format!("{} is beyond {limit}: give a number nearer to 0", *given);
                Err(error::bad_number(given.py(), message, &*given, limit).into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Seconds: a `float` or an `int`.
pub(crate) struct Seconds<'py>(Result<f64, Bound<'py, PyAny>>);

impl<'a, 'py> FromPyObject<'a, 'py> for Seconds<'py> {
    type Error = ArgumentError;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> Result<Seconds<'py>, ArgumentError> {
        match given.extract::<f64>() {
            Ok(seconds) => Ok(Seconds(Ok(seconds))),
            Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => {
                Ok(Seconds(Err(given.to_owned())))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl<'py> Seconds<'py> {
    /// Converts the number to a duration.
    pub(crate) fn duration(self, py: Python<'py>, name: &str) -> PyResult<Duration> {
        let given = match self.0 {
            Ok(seconds) => match Duration::try_from_secs_f64(seconds) {
                Ok(duration) => return Ok(duration),
                Err(_) => seconds.into_pyobject(py)?.into_any(),
            },
            Err(given) => given,
        };
        let most = u64::MAX;
        let limit = if given.gt(0)? { most } else { 0 };
        let message = format!("{name} is {given}: give a number of seconds from 0 to {most}");
        Err(error::bad_number(py, message, &given, limit))
    }
}

/// Several values of one type: any iterable except a text or bytes.
pub(crate) struct Several<T>(pub(crate) Vec<T>);

impl<'a, 'py, T: for<'b> FromPyObject<'b, 'py, Error: Into<PyErr>>> FromPyObject<'a, 'py>
    for Several<T>
{
    type Error = ArgumentError;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> Result<Several<T>, ArgumentError> {
        if given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>() {
            let name = given.get_type().name()?;
            return Err(PyTypeError::new_err(format!("give a sequence, not {name}")).into());
        }
        let all = given.try_iter()?.map(|each| each?.extract::<T>().map_err(Into::into));
        Ok(Several(all.collect::<PyResult<Vec<T>>>()?))
    }
}

/// A tuple of exactly `N` values.
pub(crate) struct Exactly<T, const N: usize>(pub(crate) [T; N]);

impl<'a, 'py, T: for<'b> FromPyObject<'b, 'py, Error: Into<PyErr>>, const N: usize>
    FromPyObject<'a, 'py> for Exactly<T, N>
{
    type Error = ArgumentError;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> Result<Exactly<T, N>, ArgumentError> {
        let wrong = |what: String| PyTypeError::new_err(format!("give a tuple of {N}, not {what}"));
        let Ok(tuple) = given.cast::<PyTuple>() else {
            return Err(wrong(given.get_type().name()?.to_string()).into());
        };
        let all = tuple.iter().map(|each| each.extract::<T>().map_err(Into::into));
        let all = all.collect::<PyResult<Vec<T>>>()?;
        let given = all.len();
        all.try_into().map(Exactly).map_err(|_| wrong(format!("one of {given}")).into())
    }
}

/// Converts an argument that PyO3 converts by itself, for the name of the argument in its error.
pub(crate) fn plain<'a, 'py, T>(given: &'a Bound<'py, PyAny>) -> PyResult<T>
where
    T: FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    given.extract().map_err(|error| ArgumentError::from(Into::into(error)).into())
}

/// A callable.
pub(crate) struct Callback(pub(crate) Py<PyAny>);

impl<'a, 'py> FromPyObject<'a, 'py> for Callback {
    type Error = ArgumentError;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> Result<Callback, ArgumentError> {
        if given.is_callable() {
            return Ok(Callback(given.to_owned().unbind()));
        }
        let name = given.get_type().name()?;
        Err(PyTypeError::new_err(format!("give a callable that accepts (done, total), not {name}"))
            .into())
    }
}

//! *Options*: what keyword arguments say, in the words of the `kvmem` command.

use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::{Backing, Ladder, Numa, Populate};
use kvmem::register::{Devices, Policy, Registrar};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error;

/// One text with commas, or several texts.
pub(crate) struct Words(String);

impl<'a, 'py> FromPyObject<'a, 'py> for Words {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Words> {
        if let Ok(text) = given.cast::<PyString>() {
            return Ok(Words(text.to_str()?.to_owned()));
        }
        let words: Vec<String> = given.extract().map_err(|_| {
            PyTypeError::new_err("give a str with commas between the words, or a sequence of str")
        })?;
        Ok(Words(words.join(",")))
    }
}

/// Kinds of pages, first choice first.
pub(crate) fn ladder(py: Python<'_>, pages: Option<&Words>, strict: bool) -> PyResult<Ladder> {
    let ladder = match pages {
        Some(Words(pages)) => pages.parse().map_err(|error| error::bad_value(py, error))?,
        None => Ladder::default(),
    };
    Ok(ladder.strict(strict))
}

/// `None`, or a policy in words.
pub(crate) fn numa(py: Python<'_>, numa: Option<&str>) -> PyResult<Numa> {
    numa.map_or(Ok(Numa::None), |numa| numa.parse().map_err(|error: String| error::bad_value(py, error)))
}

/// `None`, a number of threads, or a text.
#[derive(FromPyObject)]
pub(crate) enum Threads {
    Number(usize),
    Word(String),
}

/// Who makes pages resident.
pub(crate) fn populate(py: Python<'_>, threads: Option<&Threads>) -> PyResult<Populate> {
    match threads {
        None => Ok(Populate::None),
        Some(Threads::Number(threads)) => Ok(Populate::threads(*threads)),
        Some(Threads::Word(word)) => word.parse().map_err(|error: String| error::bad_value(py, error)),
    }
}

/// Who does so where that is what the caller came for: automatic, unless something else is said.
pub(crate) fn populate_now(py: Python<'_>, threads: Option<&Threads>) -> PyResult<Populate> {
    threads.map_or(Ok(Populate::Auto), |threads| populate(py, Some(threads)))
}

pub(crate) fn backing(shared: bool) -> Backing {
    if shared { Backing::Shared } else { Backing::Private }
}

/// Opens the devices that are named.
pub(crate) fn devices(py: Python<'_>, devices: Option<&Words>) -> PyResult<Vec<Arc<dyn Registrar>>> {
    let Some(Words(devices)) = devices else { return Ok(Vec::new()) };
    let devices: Devices = devices.parse().map_err(|error| error::bad_value(py, error))?;
    py.detach(|| devices.open()).map_err(|error| error::not_available(py, &error))
}

/// As said, or as the environment says, or automatic.
pub(crate) fn policy(py: Python<'_>, policy: Option<&str>) -> PyResult<Policy> {
    match policy {
        Some(policy) => policy.parse().map_err(|error: String| error::bad_value(py, error)),
        None => Ok(Policy::from_env().map_err(|error| error::bad_value(py, error))?.unwrap_or_default()),
    }
}

/// Seconds, more than none.
pub(crate) fn seconds(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else { return Ok(None) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) => Ok(Some(duration)),
        Err(_) => Err(error::bad_value(py, format!("{seconds} is no number of seconds: give 0 or more"))),
    }
}

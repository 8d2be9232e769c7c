//! *Options*: keyword arguments, in the words of the `kvmem` command.

use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::{Backing, Ladder, Numa, Populate};
use kvmem::pool::InitOn;
use kvmem::register::{Devices, Policy, Registrar};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::{self, ArgumentError};
use crate::number::{Int, Seconds};

/// Maximum number of threads: more than any machine has cores.
const MAX_THREADS: u64 = 1 << 20;

/// One text with commas, or several texts.
pub(crate) struct Words(String);

impl<'a, 'py> FromPyObject<'a, 'py> for Words {
    type Error = ArgumentError;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> Result<Words, ArgumentError> {
        if let Ok(text) = given.cast::<PyString>() {
            return Ok(Words(text.to_str()?.to_owned()));
        }
        let words: Vec<String> = given.extract().map_err(|_| {
            PyTypeError::new_err("give a str with commas between the words, or a sequence of str")
        })?;
        Ok(Words(words.join(",")))
    }
}

/// Converts page sizes, in order of preference.
pub(crate) fn ladder(py: Python<'_>, pages: Option<&Words>, strict: bool) -> PyResult<Ladder> {
    let ladder = match pages {
        Some(Words(pages)) => pages.parse().map_err(|error| error::bad_value(py, error))?,
        None => Ladder::default(),
    };
    Ok(ladder.strict(strict))
}

/// Converts a NUMA policy. None: no policy.
pub(crate) fn numa(py: Python<'_>, numa: Option<&str>) -> PyResult<Numa> {
    numa.map_or(Ok(Numa::None), |numa| numa.parse().map_err(|error| error::bad_value(py, error)))
}

/// A number of threads, or a text.
pub(crate) enum Threads<'py> {
    Number(Int<'py>),
    Word(String),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Threads<'py> {
    type Error = ArgumentError;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> Result<Threads<'py>, ArgumentError> {
        if let Ok(text) = given.cast::<PyString>() {
            return Ok(Threads::Word(text.to_str()?.to_owned()));
        }
        given.extract::<Int<'py>>().map(Threads::Number).map_err(|_| {
            let name =
                given.get_type().name().map_or_else(|_| "that".to_owned(), |name| name.to_string());
            PyTypeError::new_err(format!(
                "give a number of threads, a str such as \"auto\", or None, not {name}"
            ))
            .into()
        })
    }
}

/// Converts the number of threads that populate. None: no population.
pub(crate) fn populate<'py>(
    py: Python<'py>,
    name: &str,
    threads: Option<Threads<'py>>,
) -> PyResult<Populate> {
    match threads {
        None => Ok(Populate::None),
        Some(Threads::Number(threads)) => {
            let threads = threads.within(py, name, 0..=MAX_THREADS)?;
            Ok(Populate::threads(usize::try_from(threads).unwrap_or(usize::MAX)))
        }
        Some(Threads::Word(word)) => word.parse().map_err(|error| error::bad_value(py, error)),
    }
}

/// Converts the number of threads of a call that populates. None: automatic.
pub(crate) fn populate_now<'py>(
    py: Python<'py>,
    threads: Option<Threads<'py>>,
) -> PyResult<Populate> {
    threads.map_or(Ok(Populate::Auto), |threads| populate(py, "threads", Some(threads)))
}

pub(crate) fn backing(shared: bool) -> Backing {
    if shared { Backing::Shared } else { Backing::Private }
}

/// Converts the moment at which bytes are set to zero. None: never.
pub(crate) fn init_on(py: Python<'_>, init_on: Option<&str>) -> PyResult<InitOn> {
    match init_on {
        None => Ok(InitOn::Never),
        Some("alloc") => Ok(InitOn::Alloc),
        Some("free") => Ok(InitOn::Free),
        Some(other) => {
            let message = format!("init_on is {other:?}: use \"alloc\", \"free\" or None");
            Err(error::bad_value(py, message))
        }
    }
}

/// Opens the named devices.
pub(crate) fn devices(
    py: Python<'_>,
    devices: Option<&Words>,
) -> PyResult<Vec<Arc<dyn Registrar>>> {
    let Some(Words(devices)) = devices else { return Ok(Vec::new()) };
    let devices: Devices = devices.parse().map_err(|error| error::bad_value(py, error))?;
    py.detach(|| devices.open()).map_err(|error| error::not_available(py, &error))
}

/// Converts a policy. None: the environment's policy, or automatic.
pub(crate) fn policy(py: Python<'_>, policy: Option<&str>) -> PyResult<Policy> {
    match policy {
        Some(policy) => policy.parse::<Policy>().map_err(|error| error::bad_value(py, error)),
        None => {
            Ok(Policy::from_env().map_err(|error| error::bad_value(py, error))?.unwrap_or_default())
        }
    }
}

/// Converts a duration, if one is given.
pub(crate) fn seconds<'py>(
    py: Python<'py>,
    name: &str,
    seconds: Option<Seconds<'py>>,
) -> PyResult<Option<Duration>> {
    seconds.map(|seconds| seconds.duration(py, name)).transpose()
}

//! *Report*: converts the library's reports to Python data and text; and the log.
//!
//! Frequent figures are named tuples, in `kvmem/data.py`. Whole reports are mappings with the names
//! that the `kvmem` command writes as JSON, and print like that command.

use std::fmt::Display;

use kvmem::pool::observe::Stats;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;

/// Converts a value to `dict`, `list`, `str`, numbers and `None`.
pub(crate) fn data<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let json =
        serde_json::to_string(value).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    py.import("json")?.call_method1("loads", (json,))
}

/// Makes a report of its data and its text.
pub(crate) fn report<'py, T: Serialize + Display>(
    py: Python<'py>,
    value: &T,
) -> PyResult<Bound<'py, PyAny>> {
    named(py, "Report", (data(py, value)?, value.to_string()))
}

/// Makes an instance of a class of `kvmem.data`.
pub(crate) fn named<'py>(
    py: Python<'py>,
    class: &str,
    arguments: impl PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    py.import("kvmem.data")?.getattr(class)?.call1(arguments)
}

/// Makes statistics of the fields of a table, and of others by their names.
pub(crate) fn statistics<'py, S: Stats>(
    py: Python<'py>,
    class: &str,
    stats: &S,
    others: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    for field in S::FIELDS.iter().filter(|field| field.is_number) {
        let value = (field.value)(stats);
        match others.contains(field.name)? {
            true => {}
            false if field.is_flag => others.set_item(field.name, value != 0)?,
            false => others.set_item(field.name, value)?,
        }
    }
    py.import("kvmem.data")?.getattr(class)?.call((), Some(others))
}

/// Severity of a log line, as in `logging`.
#[derive(Clone, Copy)]
pub(crate) enum Level {
    Debug = 10,
    Info = 20,
    Warning = 30,
}

/// Writes a line to the logger `kvmem.<part>`. A failure of the logger goes to
/// `sys.unraisablehook`, and does not fail the call.
///
/// # Errors An exception that is no `Exception`, such as `KeyboardInterrupt`, is returned for the
/// caller.
pub(crate) fn log(
    py: Python<'_>,
    part: &str,
    level: Level,
    line: impl FnOnce() -> String,
) -> PyResult<()> {
    let write = || -> PyResult<()> {
        let logger = py.import("logging")?.call_method1("getLogger", (format!("kvmem.{part}"),))?;
        let level = level as u32;
        if logger.call_method1("isEnabledFor", (level,))?.is_truthy()? {
            logger.call_method1("log", (level, "%s", line().trim_end()))?;
        }
        Ok(())
    };
    match write() {
        Err(error) if error.is_instance_of::<PyException>(py) => {
            error.write_unraisable(py, None);
            Ok(())
        }
        other => other,
    }
}

/// Logs the fallbacks of a receipt: a warning for each page size that was not available.
///
/// # Errors Those of [`log`].
pub(crate) fn log_receipt(
    py: Python<'_>,
    part: &str,
    receipt: &kvmem::arena::Receipt,
) -> PyResult<()> {
    for range in &receipt.ranges {
        for fallback in &range.fallbacks {
            // A tail that is shorter than a page is expected.
            let level = match fallback {
                kvmem::arena::Fallback::Tail { .. } => Level::Debug,
                _ => Level::Warning,
            };
            log(py, part, level, || {
                format!(
                    "{} bytes in {} pages instead of {}: {fallback}",
                    range.range.len(),
                    range.obtained,
                    range.requested
                )
            })?;
        }
    }
    Ok(())
}

//! *Elements* of an argument that is an iterable, and the argument's name in errors about them.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyIterator, PyString};

use crate::cache_key::CacheKey;

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

/// Returns what `convert` makes of each key of the argument `name`. A `TypeError` about a key names
/// its place.
pub(crate) fn each_key<'py, T>(
    given: &Bound<'py, PyAny>,
    name: &str,
    convert: impl Fn(CacheKey<'_>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let convert = |(at, key): (usize, PyResult<Bound<'py, PyAny>>)| {
        let key = key?;
        let placed = |error| named(key.py(), error, &format!("{name}[{at}]"));
        convert(key.extract().map_err(placed)?)
    };
    elements(given, name, "keys")?.enumerate().map(convert).collect()
}

/// A key and what the caller passes for it.
pub(crate) type Item<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Returns the items of the argument `name`: a mapping, or an iterable of pairs of a key and its
/// `what`.
pub(crate) fn items<'py>(
    given: &Bound<'py, PyAny>,
    name: &str,
    what: &str,
) -> PyResult<Vec<Item<'py>>> {
    let items = match given.getattr_opt("items")? {
        Some(items) => items.call0()?,
        None => given.clone(),
    };
    let mut all = Vec::new();
    for (at, item) in elements(&items, name, &format!("pairs of a key and its {what}"))?.enumerate()
    {
        let item = item?;
        all.push(item.extract().map_err(|_| {
            let kind = item.get_type();
            PyTypeError::new_err(format!(
                "{name} is a mapping, or an iterable of pairs of a key and its {what}: element \
                 {at} is no pair, but of type {}",
                kind.name().map_or_else(|_| "?".to_owned(), |kind| kind.to_string())
            ))
        })?);
    }
    Ok(all)
}

/// Returns the error about the argument `name`, with the name in a `TypeError`, which the
/// interpreter raises without one.
#[cold]
pub(crate) fn named(py: Python<'_>, error: impl Into<PyErr>, name: &str) -> PyErr {
    let error = error.into();
    if !error.is_instance_of::<PyTypeError>(py) {
        return error;
    }
    let named = PyTypeError::new_err(format!("{name}: {}", error.value(py)));
    named.set_cause(py, Some(error));
    named
}

/// Returns the error about what the argument `name` has for a key, with both names in a
/// `TypeError`.
#[cold]
pub(crate) fn at_key(error: impl Into<PyErr>, name: &str, key: &Bound<'_, PyAny>) -> PyErr {
    let text = key.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
    named(key.py(), error, &format!("{name}[{text}]"))
}

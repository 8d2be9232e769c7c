//! *Keywords*: options, taken by name from the keyword arguments of a call.
//!
//! A function with many options takes them as `**options`, and takes each one out where it is used:
//! an option is written once. Its type and its meaning stand in the stub, its default in the text
//! of the signature, too. Errors name the option.

use std::time::Duration;

use kvmem::arena::Populate;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::elements::named;
use crate::error;
use crate::number::{Int, Seconds};
use crate::options::{self, Threads};
use crate::size::Size;

/// The keyword arguments of a call that were not taken yet.
pub(crate) struct Keywords<'py> {
    function: &'static str,
    left: Bound<'py, PyDict>,
}

impl<'py> Keywords<'py> {
    /// Takes the keyword arguments of `function`.
    pub(crate) fn new(
        py: Python<'py>,
        function: &'static str,
        given: Option<Bound<'py, PyDict>>,
    ) -> Keywords<'py> {
        Keywords { function, left: given.unwrap_or_else(|| PyDict::new(py)) }
    }

    fn py(&self) -> Python<'py> {
        self.left.py()
    }

    /// Takes an object.
    pub(crate) fn object(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let given = self.left.get_item(name)?;
        if given.is_some() {
            self.left.del_item(name)?;
        }
        Ok(given)
    }

    /// Takes an option; `None` selects the default.
    pub(crate) fn take<T>(&self, name: &str) -> PyResult<Option<T>>
    where
        T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
    {
        let given = self.object(name)?.filter(|given| !given.is_none());
        given.map(|given| self.convert(name, &given)).transpose()
    }

    /// Converts an option that was taken.
    pub(crate) fn convert<T>(&self, name: &str, given: &Bound<'py, PyAny>) -> PyResult<T>
    where
        T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
    {
        given.extract().map_err(|error| named(self.py(), error, name))
    }

    /// Takes an option that is true or false; it has no other value.
    pub(crate) fn flag(&self, name: &str, default: bool) -> PyResult<bool> {
        self.object(name)?.map_or(Ok(default), |given| self.convert(name, &given))
    }

    /// Takes a text.
    pub(crate) fn text(&self, name: &str) -> PyResult<Option<String>> {
        let given = self.object(name)?.filter(|given| !given.is_none());
        given.map(|given| self.convert(name, &given)).transpose()
    }

    /// Takes one of several words; the first is the default.
    pub(crate) fn choice<T, const N: usize>(
        &self,
        name: &str,
        choices: [(&str, T); N],
    ) -> PyResult<T> {
        let words = choices.each_ref().map(|(word, _)| *word);
        let given: String = match self.object(name)? {
            Some(given) => self.convert(name, &given)?,
            None => words[0].to_owned(),
        };
        let found = choices.into_iter().find(|(word, _)| *word == given);
        found.map(|(_, choice)| choice).ok_or_else(|| {
            let message = format!("{name} is {given:?}: give {}", words.join(" or "));
            error::bad_value(self.py(), message)
        })
    }

    /// Takes a number of bytes.
    pub(crate) fn bytes(&self, name: &str) -> PyResult<Option<u64>> {
        Ok(self.take::<Size>(name)?.map(|Size(bytes)| bytes))
    }

    /// Takes a number of bytes of which there is at least one.
    pub(crate) fn some_bytes(&self, name: &str) -> PyResult<Option<u64>> {
        if let Some(0) = self.left.get_item(name)?.and_then(|it| it.extract::<u64>().ok()) {
            let message = format!("{name} is 0: give at least 1, or None");
            return Err(error::bad_number(self.py(), message, 0, 1));
        }
        self.bytes(name)
    }

    /// Takes a number within bounds.
    pub(crate) fn number(&self, name: &str, min: u64, max: u64) -> PyResult<Option<u64>> {
        let given = self.take::<Int<'py>>(name)?;
        given.map(|given| given.within(self.py(), name, min..=max)).transpose()
    }

    /// Takes seconds.
    pub(crate) fn seconds(&self, name: &str) -> PyResult<Option<Duration>> {
        let given = self.take::<Seconds<'py>>(name)?;
        given.map(|given| given.duration(self.py(), name)).transpose()
    }

    /// Takes the number of threads that populate. `None` is none of them; the default is automatic.
    pub(crate) fn populate(&self) -> PyResult<Populate> {
        let name = "populate";
        let threads = match self.object(name)? {
            Some(given) => self.convert::<Option<Threads<'py>>>(name, &given)?,
            None => return Ok(Populate::Auto),
        };
        options::populate(self.py(), name, threads)
    }

    /// Returns an error if an option was not taken: the function has none of this name.
    pub(crate) fn end(self) -> PyResult<()> {
        match self.left.keys().iter().next() {
            None => Ok(()),
            Some(name) => Err(PyTypeError::new_err(format!(
                "{}() got an unexpected keyword argument '{name}'",
                self.function
            ))),
        }
    }
}

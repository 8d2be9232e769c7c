//! *Pinned*: a value of a cache that is not evicted.

use kvmem::cache::Pinned;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::block::{key, keys};
use crate::buffer::{Bytes, Span};
use crate::cache_key::OwnedKey;
use crate::collect::{Plain, plain};
use crate::context::context_manager;
use crate::error;
use crate::holder::{Held, Holder};
use crate::memory_methods::memory_methods;

impl Held for Pinned<OwnedKey> {
    const NAME: &'static str = "pinned value";
    const END: &'static str = "released";
}

impl Bytes for Pinned<OwnedKey> {
    fn span(&self) -> Span {
        Span::read_only(self.bytes())
    }
}

#[doc = doc!("Pinned")]
#[pyclass(name = "Pinned", module = "kvmem", frozen, weakref)]
pub(crate) struct PyPinned {
    held: Holder<Pinned<OwnedKey>>,
}

memory_methods!(PyPinned, Pinned<OwnedKey>);

impl Plain for Pinned<OwnedKey> {}

plain!(PyPinned { held });

impl PyPinned {
    #[inline]
    pub(crate) fn new(pinned: Pinned<OwnedKey>) -> PyPinned {
        PyPinned { held: Holder::new(pinned) }
    }
}

#[pymethods]
impl PyPinned {
    #[doc = doc!("Pinned.cache_key")]
    #[getter]
    fn cache_key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (&self.held.with(|pinned| pinned.key().clone())?).into_pyobject(py)
    }

    #[doc = doc!("Pinned.offset")]
    #[getter]
    fn offset(&self) -> PyResult<u64> {
        self.held.with(|pinned| pinned.block().offset())
    }

    #[doc = doc!("Pinned.key")]
    fn key<'py>(&self, py: Python<'py>, device: &str) -> PyResult<Bound<'py, PyAny>> {
        key(py, self.held.with(|pinned| pinned.block().key(device))?)
    }

    #[doc = doc!("Pinned.keys")]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        keys(py, self.held.with(|pinned| pinned.block().keys())?)
    }

    #[doc = doc!("Pinned.reference")]
    fn reference<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.held.with(|pinned| pinned.block().reference())?;
        crate::block::reference(py, found.map_err(|error| error::pool(py, &error))?)
    }

    #[doc = doc!("Pinned.superseded")]
    #[getter]
    fn superseded(&self) -> PyResult<bool> {
        self.held.with(Pinned::is_superseded)
    }

    #[doc = doc!("Pinned.release")]
    fn release(&self) -> PyResult<()> {
        self.held.take().map(drop)
    }

    fn __repr__(&self) -> String {
        match self.held.with(|pinned| (pinned.bytes().len(), pinned.block().offset())) {
            Ok((len, offset)) => format!("<kvmem.Pinned of {len} bytes at offset {offset}>"),
            Err(_) => "<kvmem.Pinned, released>".to_owned(),
        }
    }
}

context_manager!(PyPinned, |it, _| it.held.take_if_any().map(drop));

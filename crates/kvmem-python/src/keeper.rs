//! *Keeper*: holds a buffer of another object for a region over its bytes.
//!
//! The library would keep the buffer deep in the region, where the garbage collector cannot see it.
//! Therefore a Python object keeps it, and each object that has the region, or a part of it, links
//! to that object:
//!
//! ```text
//!   Region ──┐
//!   Piece ───┼──▶ Keeper ──▶ Py_buffer ──▶ exporter, such as a bytearray
//!   … ───────┘       ┆
//!                    └┄ weakly ┄▶ kvmem::arena::Region, without an owner
//! ```
//!
//! The bytes are released when the last link is gone. If the region is still alive then, for
//! example because a device did not deregister its keys, the bytes are never released.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use kvmem::arena::{ArenaError, Region};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::buffer::Exported;
use crate::collect::Link;
use crate::error;

/// The buffer of another object, under a region.
#[pyclass(name = "_Keeper", module = "kvmem", frozen)]
pub(crate) struct Keeper {
    // Never taken out: clearing the objects that link here ends the cycle.
    source: Mutex<Option<Exported>>,
    region: OnceLock<Weak<Region>>,
}

#[pymethods]
impl Keeper {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Only this function and `drop` take the lock, and they never overlap.
        match self.source.try_lock() {
            Ok(source) => source.as_ref().map_or(Ok(()), |source| source.traverse(&visit)),
            Err(_) => Ok(()),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let source = self.source.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.region.get().is_some_and(|region| region.strong_count() > 0) {
            std::mem::forget(source);
        }
    }
}

/// A region of the library, with the keeper of its bytes if they belong to another object.
pub(crate) struct Memory {
    // Dropped first: the keeper checks whether any region is left.
    region: Arc<Region>,
    keeper: Option<Py<Keeper>>,
}

impl Memory {
    pub(crate) fn new(region: Arc<Region>, keeper: Option<Py<Keeper>>) -> Memory {
        Memory { region, keeper }
    }

    /// Makes a region over the bytes of a buffer.
    pub(crate) fn over(py: Python<'_>, source: Exported) -> PyResult<Memory> {
        let (at, len): (NonNull<u8>, usize) = (source.writable_at(py)?, source.len());
        // SAFETY: the bytes are one allocation, writable and in place while the buffer is exported.
        // The keeper holds the export until every object that has the region is gone. The
        // exporter's code may use the bytes too; therefore neither this module nor the region's
        // methods that it calls make Rust references to them.
        let region = unsafe { Region::from_raw(at, len, ()) };
        let region = Arc::new(region.map_err(|error: ArenaError| error::arena(py, &error))?);
        let keeper = Keeper {
            source: Mutex::new(Some(source)),
            region: OnceLock::from(Arc::downgrade(&region)),
        };
        Ok(Memory { region, keeper: Some(Py::new(py, keeper)?) })
    }

    /// Returns the region, and a link to its keeper.
    pub(crate) fn into_parts(self) -> (Arc<Region>, Link<Keeper>) {
        (self.region, Link::new(self.keeper))
    }

    /// Returns another link to the keeper.
    pub(crate) fn link(&self, py: Python<'_>) -> Link<Keeper> {
        Link::new(self.keeper.as_ref().map(|keeper| keeper.clone_ref(py)))
    }
}

impl Deref for Memory {
    type Target = Arc<Region>;

    fn deref(&self) -> &Arc<Region> {
        &self.region
    }
}

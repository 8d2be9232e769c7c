//! *AttachedPool*: the memory of a pool of another process.

use std::sync::Arc;

use kvmem::pool::{Access, AttachedPool, BlockRef};
use pyo3::prelude::*;

use crate::block::write;
use crate::buffer::{Bytes, Span};
use crate::collect::{Plain, plain};
use crate::context::context_manager;
use crate::error;
use crate::holder::{Held, Holder};
use crate::memory_methods::memory_methods;
use crate::number::{Exactly, Int, plain};
use crate::region::duplicate;

impl Held for Arc<AttachedPool> {
    const NAME: &'static str = "attached pool";
    const SLOW: bool = true;
}

#[doc = doc!("AttachedPool")]
#[pyclass(name = "AttachedPool", module = "kvmem", frozen, weakref)]
pub(crate) struct PyAttachedPool {
    held: Holder<Arc<AttachedPool>>,
}

#[pymethods]
impl PyAttachedPool {
    #[new]
    #[pyo3(signature = (fd, *, writable=false))]
    fn create(
        py: Python<'_>,
        fd: Int<'_>,
        #[pyo3(from_py_with = plain)] writable: bool,
    ) -> PyResult<PyAttachedPool> {
        let fd = duplicate(py, fd)?;
        let access = if writable { Access::ReadWrite } else { Access::ReadOnly };
        let pool = py
            .detach(|| AttachedPool::attach(fd, access))
            .map_err(|error| error::pool(py, &error))?;
        Ok(PyAttachedPool { held: Holder::new(Arc::new(pool)) })
    }

    #[doc = doc!("AttachedPool.block")]
    fn block<'py>(
        &self,
        py: Python<'py>,
        reference: Exactly<Int<'py>, 3>,
    ) -> PyResult<PyAttachedBlock> {
        let Exactly([pool, offset, len]) = reference;
        let (pool, offset) = (
            pool.u64(py, "the pool of the reference")?,
            offset.u64(py, "the offset of the reference")?,
        );
        let len = len.u64(py, "the length of the reference")?;
        let memory = self.held.with(Arc::clone)?;
        let reference = BlockRef { pool, offset, len };
        let span = match memory.access() {
            // SAFETY: the slice becomes an address and a length at once. No byte is read through
            // it, so no write of another process overlaps an access.
            Access::ReadOnly => unsafe { memory.bytes(reference) }.map(Span::read_only),
            // SAFETY: the slice becomes an address and a length at once. No byte is read or written
            // through it, so no other access overlaps, and no other slice of the bytes is in use:
            // this module makes none.
            Access::ReadWrite => unsafe { memory.bytes_mut(reference) }
                .map(|bytes| Span::writable(bytes.as_mut_ptr(), bytes.len())),
        };
        let span = span.map_err(|error| error::pool(py, &error))?;
        Ok(PyAttachedBlock { held: Holder::new(Attached { span, offset, _memory: memory }) })
    }

    #[doc = doc!("AttachedPool.share_id")]
    #[getter]
    fn share_id(&self) -> PyResult<u64> {
        self.held.with(|pool| pool.share_id())
    }

    #[doc = doc!("AttachedPool.nbytes")]
    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        self.held.with(|pool| pool.len())
    }

    #[doc = doc!("AttachedPool.writable")]
    #[getter]
    fn writable(&self) -> PyResult<bool> {
        self.held.with(|pool| pool.access() == Access::ReadWrite)
    }

    #[doc = doc!("AttachedPool.close")]
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.held.end(py)
    }

    #[doc = doc!("AttachedPool.closed")]
    #[getter]
    fn closed(&self) -> bool {
        self.held.is_gone()
    }

    fn __repr__(&self) -> String {
        match self.held.with(|pool| (pool.share_id(), pool.len())) {
            Ok((number, len)) => format!("<kvmem.AttachedPool {number} of {len} bytes>"),
            Err(_) => "<kvmem.AttachedPool, closed>".to_owned(),
        }
    }
}

context_manager!(PyAttachedPool, PyAttachedPool::close);

/// Bytes of an attached pool.
pub(crate) struct Attached {
    span: Span,
    offset: u64,
    _memory: Arc<AttachedPool>,
}

impl Held for Attached {
    const NAME: &'static str = "attached block";
    const SLOW: bool = true;
}

impl Bytes for Attached {
    fn span(&self) -> Span {
        self.span
    }
}

impl Plain for Arc<AttachedPool> {}
impl Plain for Attached {}

plain!(PyAttachedPool { held });
plain!(PyAttachedBlock { held });

#[doc = doc!("AttachedBlock")]
#[pyclass(name = "AttachedBlock", module = "kvmem", frozen, weakref)]
pub(crate) struct PyAttachedBlock {
    held: Holder<Attached>,
}

memory_methods!(PyAttachedBlock, Attached);

#[pymethods]
impl PyAttachedBlock {
    #[doc = doc!("AttachedBlock.offset")]
    #[getter]
    fn offset(&self) -> PyResult<u64> {
        self.held.with(|block| block.offset)
    }

    #[doc = doc!("AttachedBlock.writable")]
    #[getter]
    fn writable(&self) -> PyResult<bool> {
        self.held.with(|block| block.span.writable)
    }

    #[doc = doc!("AttachedBlock.write")]
    #[pyo3(signature = (source, start=Int::usual(0)), text_signature = "($self, source, start=0)")]
    fn write(&self, py: Python<'_>, source: &Bound<'_, PyAny>, start: Int<'_>) -> PyResult<usize> {
        if !self.writable()? {
            return Err(error::pool(py, &kvmem::pool::PoolError::ReadOnly));
        }
        write(py, &self.held, source, start)
    }

    fn __repr__(&self) -> String {
        match self.held.with(|block| (block.span.len, block.offset)) {
            Ok((len, offset)) => format!("<kvmem.AttachedBlock of {len} bytes at offset {offset}>"),
            Err(_) => "<kvmem.AttachedBlock, of another process>".to_owned(),
        }
    }
}

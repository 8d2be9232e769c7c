//! *Block*: allocated bytes of a pool.

use kvmem::pool::{Block, BlockRef, PoolError};
use kvmem::register::Key;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::{Batch, Offsets};
use crate::buffer::{Bytes, Source, Span};
use crate::collect::{Plain, plain};
use crate::context::context_manager;
use crate::elements::named;
use crate::error;
use crate::holder::{Held, Holder};
use crate::memory_methods::memory_methods;
use crate::number::Int;
use crate::registration;
use crate::report;
use crate::size::Size;

impl Held for Block {
    const NAME: &'static str = "block";
    const END: &'static str = "freed";
}

impl Bytes for Block {
    fn span(&self) -> Span {
        Span::writable(self.as_ptr().cast_mut(), self.len())
    }
}

#[doc = doc!("Block")]
#[pyclass(name = "Block", module = "kvmem", frozen, weakref, freelist = 256)]
pub(crate) struct PyBlock {
    pub(crate) held: Holder<Block>,
}

impl Plain for Block {}
impl Plain for Vec<Block> {}

plain!(PyBlock { held });
plain!(PyBlockBatch { held });

memory_methods!(PyBlock, Block);

impl PyBlock {
    #[inline]
    pub(crate) fn new(block: Block) -> PyBlock {
        PyBlock { held: Holder::new(block) }
    }
}

/// Converts a reference to a named tuple.
pub(crate) fn reference(py: Python<'_>, reference: BlockRef) -> PyResult<Bound<'_, PyAny>> {
    report::named(py, "BlockReference", (reference.pool, reference.offset, reference.len))
}

/// Converts a block's key, or the error.
pub(crate) fn key(py: Python<'_>, found: Result<Key, PoolError>) -> PyResult<Bound<'_, PyAny>> {
    registration::key(py, found.map_err(|error| error::pool(py, &error))?)
}

/// Converts a block's keys, by device, or the error.
pub(crate) fn keys(
    py: Python<'_>,
    found: Result<Vec<(String, Key)>, PoolError>,
) -> PyResult<Bound<'_, PyDict>> {
    let keys = PyDict::new(py);
    for (device, key) in found.map_err(|error| error::pool(py, &error))? {
        keys.set_item(device, registration::key(py, key)?)?;
    }
    Ok(keys)
}

/// Copies `source` into memory, which has a view meanwhile.
pub(crate) fn write<T: Bytes>(
    py: Python<'_>,
    held: &Holder<T>,
    source: &Bound<'_, PyAny>,
    start: Int<'_>,
) -> PyResult<usize> {
    let start = start.index(py, "start")?;
    let source = Source::of(source).map_err(|error| named(py, error, "source"))?;
    let Span { at, len, .. } = held.view(T::span)?;
    let written = match start.checked_add(source.len()) {
        Some(end) if end <= len => {
            // SAFETY: `copy_to` requires room for the source at the target: the range lies within
            // the span, which is mapped and stays where it is while `view` counts a view. The class
            // has checked that it is writable.
            unsafe { source.copy_to(py, at.wrapping_add(start)) };
            Ok(source.len())
        }
        _ => Err(error::bad_number(
            py,
            format!(
                "{} bytes at {start} do not fit into {len} bytes: write fewer, or closer to 0",
                source.len()
            ),
            start as u128 + source.len() as u128,
            len,
        )),
    };
    held.release();
    written
}

#[pymethods]
impl PyBlock {
    #[doc = doc!("Block.offset")]
    #[getter]
    fn offset(&self) -> PyResult<u64> {
        self.held.with(Block::offset)
    }

    #[doc = doc!("Block.key")]
    fn key<'py>(&self, py: Python<'py>, device: &str) -> PyResult<Bound<'py, PyAny>> {
        key(py, self.held.with(|block| block.key(device))?)
    }

    #[doc = doc!("Block.keys")]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        keys(py, self.held.with(Block::keys)?)
    }

    #[doc = doc!("Block.reference")]
    fn reference<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.held.with(Block::reference)?.map_err(|error| error::pool(py, &error))?;
        reference(py, found)
    }

    #[doc = doc!("Block.write")]
    #[pyo3(signature = (source, start=Int::usual(0)), text_signature = "($self, source, start=0)")]
    fn write(&self, py: Python<'_>, source: &Bound<'_, PyAny>, start: Int<'_>) -> PyResult<usize> {
        write(py, &self.held, source, start)
    }

    #[doc = doc!("Block.shrink")]
    fn shrink(&self, py: Python<'_>, nbytes: Size) -> PyResult<()> {
        let changed = self.held.change(|block| block.shrink(nbytes.bytes()))?;
        changed.map_err(|error| error::pool(py, &error))
    }

    #[doc = doc!("Block.extend")]
    fn extend(&self, py: Python<'_>, nbytes: Size) -> PyResult<()> {
        let changed = self.held.change(|block| block.extend(nbytes.bytes()))?;
        changed.map_err(|error| error::pool(py, &error))
    }

    #[doc = doc!("Block.free")]
    fn free(&self) -> PyResult<()> {
        self.held.take().map(drop)
    }

    #[doc = doc!("Block.freed")]
    #[getter]
    fn freed(&self) -> bool {
        self.held.is_gone()
    }

    fn __repr__(&self) -> String {
        match self.held.with(|block| (block.offset(), block.len())) {
            Ok((offset, len)) => format!("<kvmem.Block of {len} bytes at offset {offset}>"),
            Err(_) => "<kvmem.Block, freed>".to_owned(),
        }
    }
}

context_manager!(PyBlock, |it, _| it.held.take_if_any().map(drop));

impl Held for Vec<Block> {
    const NAME: &'static str = "batch";
    const END: &'static str = "freed";
    const VIEWS: &'static str = "hold(s), such as a transfer's: wait until it is over";
}

impl Batch for Vec<Block> {
    fn nbytes(&self) -> u64 {
        self.first().map_or(0, |block| block.len() as u64)
    }

    fn offsets(&self) -> Vec<u64> {
        self.iter().map(Block::offset).collect()
    }
}

#[doc = doc!("BlockBatch")]
#[pyclass(name = "BlockBatch", module = "kvmem", frozen, weakref)]
pub(crate) struct PyBlockBatch {
    pub(crate) held: Holder<Vec<Block>>,
}

#[pymethods]
impl PyBlockBatch {
    fn __len__(&self) -> PyResult<usize> {
        self.held.with(Vec::len)
    }

    #[doc = doc!("BlockBatch.nbytes")]
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.held.with(Batch::nbytes)
    }

    #[doc = doc!("BlockBatch.offsets")]
    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Offsets::view(py, self.held.with(Batch::offsets)?)
    }

    #[doc = doc!("BlockBatch.ptrs")]
    #[getter]
    fn ptrs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ptrs = self
            .held
            .with(|blocks| blocks.iter().map(|block| block.as_ptr().addr() as u64).collect())?;
        Offsets::view(py, ptrs)
    }

    #[doc = doc!("BlockBatch.free")]
    fn free(&self) -> PyResult<()> {
        self.held.take().map(drop)
    }

    #[doc = doc!("BlockBatch.freed")]
    #[getter]
    fn freed(&self) -> bool {
        self.held.is_gone()
    }

    #[doc = doc!("BlockBatch.split")]
    fn split(&self) -> PyResult<Vec<PyBlock>> {
        Ok(self.held.take()?.into_iter().map(PyBlock::new).collect())
    }

    fn __repr__(&self) -> String {
        match self.held.with(|all| (all.len(), Batch::nbytes(all))) {
            Ok((n, len)) => format!("<kvmem.BlockBatch of {n} × {len} bytes>"),
            Err(_) => "<kvmem.BlockBatch, freed>".to_owned(),
        }
    }
}

context_manager!(PyBlockBatch, |it, _| it.held.take_if_any().map(drop));

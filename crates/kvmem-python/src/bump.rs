//! *BumpArena*: pieces of a region, allocated by moving a cursor.

use std::sync::Arc;

use kvmem::arena::{BumpArena, Region};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffer::{Bytes, Span};
use crate::collect::{Link, Plain, collected};
use crate::error;
use crate::holder::{Held, Holder};
use crate::keeper::Keeper;
use crate::memory_methods::memory_methods;
use crate::number::Int;
use crate::region::PyRegion;
use crate::report;
use crate::size::Size;

/// The arena, shared with its pieces: this is the only reference when there are no pieces.
type Arena = Arc<BumpArena<Arc<Region>>>;

impl Held for Arena {
    const NAME: &'static str = "arena";
    const SLOW: bool = true;
}

#[doc = doc!("BumpArena")]
#[pyclass(name = "BumpArena", module = "kvmem", frozen, weakref)]
pub(crate) struct PyBumpArena {
    held: Holder<Arena>,
    region: Link<PyRegion>,
    keeper: Link<Keeper>,
}

impl Plain for Arena {}

collected!(PyBumpArena { held, region, keeper }, |it, py| {
    it.region.cut(py);
    if it.held.clear(py) {
        it.keeper.cut(py);
    }
});

#[pymethods]
impl PyBumpArena {
    #[new]
    fn create(region: Bound<'_, PyRegion>) -> PyResult<PyBumpArena> {
        let (memory, keeper) = region.get().region(region.py())?.into_parts();
        let arena = Arc::new(BumpArena::new(memory));
        Ok(PyBumpArena {
            held: Holder::new(arena),
            region: Link::new(Some(region.unbind())),
            keeper,
        })
    }

    #[doc = doc!("BumpArena.allocate")]
    #[pyo3(
        signature = (nbytes, *, align=Int::usual(64)),
        text_signature = "($self, nbytes, *, align=64)"
    )]
    fn allocate(&self, py: Python<'_>, nbytes: Size, align: Int<'_>) -> PyResult<PyPiece> {
        let align = align.index(py, "align")?;
        let arena = self.held.with(Arc::clone)?;
        match arena.allocate_bytes(nbytes.bytes(), align) {
            Ok(bytes) => {
                let offset = bytes.cast::<u8>().addr().get() - arena.base().addr().get();
                let held = Holder::new(Piece { offset, len: bytes.len(), arena });
                Ok(PyPiece { held, keeper: Link::new(self.keeper.get(py)) })
            }
            Err(error) => Err(error::bump(py, &error)),
        }
    }

    #[doc = doc!("BumpArena.reset")]
    fn reset(&self) -> PyResult<()> {
        let pieces = self.held.change(|arena| match Arc::get_mut(arena) {
            Some(arena) => {
                arena.reset();
                0
            }
            None => Arc::strong_count(arena) - 1,
        })?;
        if pieces == 0 { Ok(()) } else { Err(error::viewed(Arena::NAME, Arena::VIEWS, pieces)) }
    }

    #[doc = doc!("BumpArena.owns")]
    fn owns(&self, py: Python<'_>, address: Int<'_>) -> PyResult<bool> {
        let address = address.index(py, "address")?;
        self.held.with(|arena| arena.owns(std::ptr::without_provenance(address)))
    }

    #[doc = doc!("BumpArena.stats")]
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self.held.with(|arena| arena.stats())?;
        report::statistics(py, "BumpStats", &stats, &PyDict::new(py))
    }

    #[doc = doc!("BumpArena.region")]
    #[getter]
    fn region(&self, py: Python<'_>) -> PyResult<Py<PyRegion>> {
        self.region.get(py).ok_or_else(|| error::closed(Arena::NAME, Arena::END))
    }

    #[doc = doc!("BumpArena.capacity")]
    #[getter]
    fn capacity(&self) -> PyResult<usize> {
        self.held.with(|arena| arena.capacity())
    }

    fn __repr__(&self) -> String {
        match self.held.with(|arena| arena.stats()) {
            Ok(stats) => {
                format!("<kvmem.BumpArena of {} bytes, {} used>", stats.capacity, stats.used)
            }
            Err(_) => "<kvmem.BumpArena, closed>".to_owned(),
        }
    }
}

/// Bytes that an arena has allocated.
pub(crate) struct Piece {
    offset: usize,
    len: usize,
    arena: Arena,
}

impl Held for Piece {
    const NAME: &'static str = "piece";
    const SLOW: bool = true;
}

impl Bytes for Piece {
    fn span(&self) -> Span {
        Span::writable(self.arena.base().as_ptr().wrapping_add(self.offset), self.len)
    }
}

#[doc = doc!("Piece")]
#[pyclass(name = "Piece", module = "kvmem", frozen, weakref)]
pub(crate) struct PyPiece {
    held: Holder<Piece>,
    keeper: Link<Keeper>,
}

impl Plain for Piece {}

collected!(PyPiece { held, keeper }, |it, py| {
    if it.held.clear(py) {
        it.keeper.cut(py);
    }
});

memory_methods!(PyPiece, Piece);

#[pymethods]
impl PyPiece {
    #[doc = doc!("Piece.offset")]
    #[getter]
    fn offset(&self) -> PyResult<usize> {
        self.held.with(|piece| piece.offset)
    }

    fn __repr__(&self) -> String {
        match self.held.with(|piece| (piece.offset, piece.len)) {
            Ok((offset, len)) => format!("<kvmem.Piece of {len} bytes at offset {offset}>"),
            Err(_) => "<kvmem.Piece, of another process>".to_owned(),
        }
    }
}

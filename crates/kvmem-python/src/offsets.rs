//! *OffsetAllocator*: ranges of an abstract space.
//!
//! Nothing here releases the GIL, so that no lock of a space is held by another thread when the
//! process forks: a child goes on with its copy.

use kvmem::offset::{Allocation, OffsetAllocator, Placement};
use pyo3::prelude::*;

use crate::batch::{Batch, Offsets, take_all};
use crate::collect::{Plain, plain};
use crate::context::context_manager;
use crate::error::{self, Request};
use crate::holder::{Held, Holder};
use crate::number::Int;
use crate::report;
use crate::size::Size;

impl Held for Allocation {
    const NAME: &'static str = "allocation";
    const END: &'static str = "freed";
    const SURVIVES_FORK: bool = true;
}

impl Held for Vec<Allocation> {
    const NAME: &'static str = "batch";
    const END: &'static str = "freed";
    const SURVIVES_FORK: bool = true;
}

impl Batch for Vec<Allocation> {
    fn size(&self) -> u64 {
        self.first().map_or(0, Allocation::len)
    }

    fn offsets(&self) -> Vec<u64> {
        self.iter().map(Allocation::offset).collect()
    }
}

/// Hands out ranges of an abstract space; never touches bytes. Goes on in a forked child, as
/// a copy.
///
/// Options:
///
/// - ``capacity``: bytes of the space, from 1 to 2**63.
/// - ``boundary``: no range straddles a multiple of this number of bytes, or is longer.
/// - ``max_ranges``: the most ranges, used and free, that the allocator keeps: 16 or more. They
///   take about 50 bytes each. None: about 2**32.
/// - ``placement``: ``renewal`` or ``best-fit``.
///
/// Raises :class:`BadValueError`.
#[pyclass(name = "OffsetAllocator", module = "kvmem", frozen, weakref)]
pub(crate) struct PyOffsetAllocator {
    space: OffsetAllocator,
}

#[pymethods]
impl PyOffsetAllocator {
    #[new]
    #[pyo3(signature = (capacity, *, boundary=None, max_ranges=None, placement="renewal"))]
    fn create(
        py: Python<'_>,
        capacity: Size,
        boundary: Option<Size>,
        max_ranges: Option<Int<'_>>,
        placement: &str,
    ) -> PyResult<PyOffsetAllocator> {
        let placement = match placement {
            "renewal" => Placement::Renewal,
            "best-fit" => Placement::BestFit,
            other => {
                let message = format!("{other:?} is no placement: say renewal or best-fit");
                return Err(error::bad_value(py, message));
            }
        };
        let mut builder = OffsetAllocator::builder(capacity.0).placement(placement);
        if let Some(Size(bytes)) = boundary {
            builder = builder.boundary(bytes);
        }
        if let Some(ranges) = max_ranges {
            builder = builder.max_ranges(ranges.u32(py, "max_ranges")?);
        }
        let space = builder.build().map_err(|error| error::space(py, &error))?;
        Ok(PyOffsetAllocator { space })
    }

    /// A range of exactly ``size`` bytes. Raises :class:`OutOfSpaceError`.
    #[pyo3(signature = (size, *, align=None))]
    fn allocate(
        &self,
        py: Python<'_>,
        size: Size,
        align: Option<Int<'_>>,
    ) -> PyResult<PyAllocation> {
        let align = align.map(|align| align.u64(py, "align")).transpose()?;
        let granted = match align {
            None => self.space.allocate(size.0),
            Some(align) => self.space.allocate_aligned(size.0, align),
        };
        match granted {
            Ok(allocation) => Ok(PyAllocation { held: Holder::new(allocation) }),
            Err(error) => {
                Err(error::request(py, &error, Request { nbytes: size.0, align, n: None }))
            }
        }
    }

    /// ``n`` ranges of ``size`` bytes each, all of them or none.
    fn allocate_batch(
        &self,
        py: Python<'_>,
        size: Size,
        n: Int<'_>,
    ) -> PyResult<PyAllocationBatch> {
        let n = n.index(py, "n")?;
        let granted = self.space.allocate_batch(size.0, n).map_err(|error| {
            error::request(py, &error, Request { nbytes: size.0, align: None, n: Some(n as u64) })
        })?;
        Ok(PyAllocationBatch { held: Holder::new(granted) })
    }

    /// ``total`` bytes in at most ``max_ranges`` ranges, as few and as long as can be had.
    fn allocate_scattered(
        &self,
        py: Python<'_>,
        total: Size,
        max_ranges: Int<'_>,
    ) -> PyResult<Vec<PyAllocation>> {
        let max_ranges = max_ranges.within(py, "max_ranges", 1..=u64::MAX)? as usize;
        let granted = self.space.allocate_scattered(total.0, max_ranges);
        let granted = granted.map_err(|error| error::alloc(py, &error))?;
        Ok(granted.into_iter().map(|one| PyAllocation { held: Holder::new(one) }).collect())
    }

    /// Frees many at once, neighbours joined first; all of them, or none if one cannot be.
    fn free_batch(&self, allocations: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(batch) = allocations.cast::<PyAllocationBatch>() {
            self.space.free_batch(batch.get().held.take()?);
            return Ok(());
        }
        self.space.free_batch(take_all(allocations, |one: &PyAllocation| &one.held)?);
        Ok(())
    }

    /// Moves the end of the space up.
    fn grow(&self, py: Python<'_>, capacity: Size) -> PyResult<()> {
        self.space.grow(capacity.0).map_err(|error| error::space(py, &error))
    }

    /// Moves the end of the space down. Raises :class:`InUseError` if something in use lies
    /// behind it.
    fn shrink_to(&self, py: Python<'_>, capacity: Size) -> PyResult<()> {
        self.space.shrink_to(capacity.0).map_err(|error| error::space(py, &error))
    }

    /// Length of the space in bytes.
    #[getter]
    fn capacity(&self) -> u64 {
        self.space.capacity()
    }

    /// No range straddles a multiple of this number of bytes. None: there is no boundary.
    #[getter]
    fn boundary(&self) -> Option<u64> {
        self.space.boundary()
    }

    /// An upper bound of the longest free range, without the lock.
    #[getter]
    fn largest_free_hint(&self) -> u64 {
        self.space.largest_free_hint()
    }

    /// Figures of the space.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        metrics(py, &self.space.metrics())
    }

    /// The whole space in order of addresses: offset, size, whether it is used.
    fn map(&self) -> Vec<(u64, u64, bool)> {
        self.space.map().into_iter().map(|range| (range.offset, range.size, range.used)).collect()
    }

    /// The free ranges by size: least and greatest size of the bin, ranges, bytes.
    fn bins(&self) -> Vec<(u64, u64, u64, u64)> {
        self.space
            .bins()
            .into_iter()
            .map(|bin| (bin.size_min, bin.size_max, bin.ranges, bin.bytes))
            .collect()
    }

    /// Checks the books against their invariants: for tests.
    fn check(&self) -> PyResult<()> {
        self.space.check().map_err(|error| error::defect(&error))
    }

    fn __repr__(&self) -> String {
        let metrics = self.space.metrics();
        format!(
            "<kvmem.OffsetAllocator of {} bytes, {} allocated in {} ranges>",
            metrics.capacity, metrics.allocated, metrics.live
        )
    }
}

/// Figures, as named tuple.
pub(crate) fn metrics<'py>(
    py: Python<'py>,
    metrics: &kvmem::offset::Metrics,
) -> PyResult<Bound<'py, PyAny>> {
    let kvmem::offset::Metrics {
        capacity,
        allocated,
        free,
        largest_free,
        live,
        free_ranges,
        metadata_bytes,
        ..
    } = *metrics;
    report::named(
        py,
        "Metrics",
        (capacity, allocated, free, largest_free, live, free_ranges, metadata_bytes),
    )
}

/// A range that somebody has, until it is freed or forgotten.
#[pyclass(name = "Allocation", module = "kvmem", frozen, weakref, freelist = 256)]
pub(crate) struct PyAllocation {
    held: Holder<Allocation>,
}

impl Plain for Allocation {}
impl Plain for Vec<Allocation> {}

plain!(PyOffsetAllocator { space });
plain!(PyAllocation { held });
plain!(PyAllocationBatch { held });

#[pymethods]
impl PyAllocation {
    /// Where it begins, in bytes.
    #[getter]
    fn offset(&self) -> PyResult<u64> {
        self.held.with(Allocation::offset)
    }

    /// Its length in bytes: exactly what was asked for.
    #[getter]
    fn size(&self) -> PyResult<u64> {
        self.held.with(Allocation::len)
    }

    /// Frees it. A second time raises :class:`ClosedError`.
    fn free(&self) -> PyResult<()> {
        self.held.take().map(drop)
    }

    /// Whether it has been freed.
    #[getter]
    fn freed(&self) -> bool {
        self.held.is_gone()
    }

    /// Gives back the tail.
    fn shrink(&self, py: Python<'_>, size: Size) -> PyResult<()> {
        self.held
            .change(|allocation| allocation.shrink(size.0))?
            .map_err(|error| error::alloc(py, &error))
    }

    /// Takes in free bytes that lie behind.
    fn extend(&self, py: Python<'_>, size: Size) -> PyResult<()> {
        self.held
            .change(|allocation| allocation.extend(size.0))?
            .map_err(|error| error::alloc(py, &error))
    }

    fn __repr__(&self) -> String {
        match self.held.with(|allocation| (allocation.offset(), allocation.size())) {
            Ok((offset, size)) => format!("<kvmem.Allocation of {size} bytes at offset {offset}>"),
            Err(_) => "<kvmem.Allocation, freed>".to_owned(),
        }
    }
}

context_manager!(PyAllocation, |it, _| it.held.take_if_any().map(drop));

/// Many ranges of one size.
#[pyclass(name = "AllocationBatch", module = "kvmem", frozen, weakref)]
pub(crate) struct PyAllocationBatch {
    held: Holder<Vec<Allocation>>,
}

#[pymethods]
impl PyAllocationBatch {
    fn __len__(&self) -> PyResult<usize> {
        self.held.with(Vec::len)
    }

    /// Bytes of each.
    #[getter]
    fn size(&self) -> PyResult<u64> {
        self.held.with(Batch::size)
    }

    /// Where each begins: read-only, format ``Q``, as ``array('Q')``. It stays good when the
    /// batch has been freed.
    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Offsets::view(py, self.held.with(Batch::offsets)?)
    }

    /// Frees all of them.
    fn free(&self) -> PyResult<()> {
        self.held.take().map(drop)
    }

    /// Whether they have been freed, or taken apart.
    #[getter]
    fn freed(&self) -> bool {
        self.held.is_gone()
    }

    /// The allocations one by one; the batch has none of them afterwards.
    fn split(&self) -> PyResult<Vec<PyAllocation>> {
        let all = self.held.take()?;
        Ok(all.into_iter().map(|one| PyAllocation { held: Holder::new(one) }).collect())
    }

    fn __repr__(&self) -> String {
        match self.held.with(|all| (all.len(), Batch::size(all))) {
            Ok((n, size)) => format!("<kvmem.AllocationBatch of {n} × {size} bytes>"),
            Err(_) => "<kvmem.AllocationBatch, freed>".to_owned(),
        }
    }
}

context_manager!(PyAllocationBatch, |it, _| it.held.take_if_any().map(drop));

//! *OffsetAllocator*: ranges of an abstract space.
//!
//! Nothing here releases the GIL. No lock of a space is therefore held by another thread when the
//! process forks, and a child continues with its copy.

use kvmem::offset::{Allocation, OffsetAllocator, Placement};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::{Batch, Offsets, take_all};
use crate::collect::{Plain, plain};
use crate::context::context_manager;
use crate::error::{self, Request};
use crate::holder::{Held, Holder};
use crate::number::{Int, plain};
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
    fn nbytes(&self) -> u64 {
        self.first().map_or(0, Allocation::len)
    }

    fn offsets(&self) -> Vec<u64> {
        self.iter().map(Allocation::offset).collect()
    }
}

#[doc = doc!("OffsetAllocator")]
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
        #[pyo3(from_py_with = plain)] placement: &str,
    ) -> PyResult<PyOffsetAllocator> {
        let placement = match placement {
            "renewal" => Placement::Renewal,
            "best-fit" => Placement::BestFit,
            other => {
                let message = format!("placement is {other:?}: give renewal or best-fit");
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

    #[doc = doc!("OffsetAllocator.allocate")]
    #[pyo3(signature = (nbytes, *, align=None))]
    fn allocate(
        &self,
        py: Python<'_>,
        nbytes: Size,
        align: Option<Int<'_>>,
    ) -> PyResult<PyAllocation> {
        let align = align.map(|align| align.u64(py, "align")).transpose()?;
        let allocated = match align {
            None => self.space.allocate(nbytes.0),
            Some(align) => self.space.allocate_aligned(nbytes.0, align),
        };
        match allocated {
            Ok(allocation) => Ok(PyAllocation { held: Holder::new(allocation) }),
            Err(error) => {
                Err(error::request(py, &error, Request { nbytes: nbytes.0, align, n: None }))
            }
        }
    }

    #[doc = doc!("OffsetAllocator.allocate_batch")]
    fn allocate_batch(
        &self,
        py: Python<'_>,
        nbytes: Size,
        n: Int<'_>,
    ) -> PyResult<PyAllocationBatch> {
        let n = n.index(py, "n")?;
        let allocated = self.space.allocate_batch(nbytes.0, n).map_err(|error| {
            error::request(py, &error, Request { nbytes: nbytes.0, align: None, n: Some(n as u64) })
        })?;
        Ok(PyAllocationBatch { held: Holder::new(allocated) })
    }

    #[doc = doc!("OffsetAllocator.allocate_scattered")]
    fn allocate_scattered(
        &self,
        py: Python<'_>,
        total: Size,
        max_ranges: Int<'_>,
    ) -> PyResult<Vec<PyAllocation>> {
        let max_ranges = max_ranges.within(py, "max_ranges", 1..=u64::MAX)? as usize;
        let allocated = self.space.allocate_scattered(total.0, max_ranges);
        let allocated = allocated.map_err(|error| error::alloc(py, &error))?;
        Ok(allocated.into_iter().map(|one| PyAllocation { held: Holder::new(one) }).collect())
    }

    #[doc = doc!("OffsetAllocator.free_batch")]
    fn free_batch(&self, allocations: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(batch) = allocations.cast::<PyAllocationBatch>() {
            self.space.free_batch(batch.get().held.take()?);
            return Ok(());
        }
        self.space
            .free_batch(take_all(allocations, "allocations", |one: &PyAllocation| &one.held)?);
        Ok(())
    }

    #[doc = doc!("OffsetAllocator.grow_to")]
    fn grow_to(&self, py: Python<'_>, capacity: Size) -> PyResult<()> {
        self.space.grow_to(capacity.0).map_err(|error| error::space(py, &error))
    }

    #[doc = doc!("OffsetAllocator.shrink_to")]
    fn shrink_to(&self, py: Python<'_>, capacity: Size) -> PyResult<()> {
        self.space.shrink_to(capacity.0).map_err(|error| error::space(py, &error))
    }

    #[doc = doc!("OffsetAllocator.capacity")]
    #[getter]
    fn capacity(&self) -> u64 {
        self.space.capacity()
    }

    #[doc = doc!("OffsetAllocator.boundary")]
    #[getter]
    fn boundary(&self) -> Option<u64> {
        self.space.boundary()
    }

    #[doc = doc!("OffsetAllocator.largest_free_hint")]
    #[getter]
    fn largest_free_hint(&self) -> u64 {
        self.space.largest_free_hint()
    }

    #[doc = doc!("OffsetAllocator.metrics")]
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        metrics(py, &self.space.metrics())
    }

    #[doc = doc!("OffsetAllocator.map")]
    fn map(&self) -> Vec<(u64, u64, bool)> {
        self.space.map().into_iter().map(|range| (range.offset, range.size, range.used)).collect()
    }

    #[doc = doc!("OffsetAllocator.bins")]
    fn bins(&self) -> Vec<(u64, u64, u64, u64)> {
        self.space
            .bins()
            .into_iter()
            .map(|bin| (bin.size_min, bin.size_max, bin.ranges, bin.bytes))
            .collect()
    }

    #[doc = doc!("OffsetAllocator.check")]
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

/// Converts metrics to a named tuple.
pub(crate) fn metrics<'py>(
    py: Python<'py>,
    metrics: &kvmem::offset::Metrics,
) -> PyResult<Bound<'py, PyAny>> {
    report::statistics(py, "Metrics", metrics, &PyDict::new(py))
}

#[doc = doc!("Allocation")]
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
    #[doc = doc!("Allocation.offset")]
    #[getter]
    fn offset(&self) -> PyResult<u64> {
        self.held.with(Allocation::offset)
    }

    #[doc = doc!("Allocation.nbytes")]
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.held.with(Allocation::len)
    }

    #[doc = doc!("Allocation.free")]
    fn free(&self) -> PyResult<()> {
        self.held.take().map(drop)
    }

    #[doc = doc!("Allocation.freed")]
    #[getter]
    fn freed(&self) -> bool {
        self.held.is_gone()
    }

    #[doc = doc!("Allocation.shrink")]
    fn shrink(&self, py: Python<'_>, nbytes: Size) -> PyResult<()> {
        self.held
            .change(|allocation| allocation.shrink(nbytes.0))?
            .map_err(|error| error::alloc(py, &error))
    }

    #[doc = doc!("Allocation.extend")]
    fn extend(&self, py: Python<'_>, nbytes: Size) -> PyResult<()> {
        self.held
            .change(|allocation| allocation.extend(nbytes.0))?
            .map_err(|error| error::alloc(py, &error))
    }

    fn __repr__(&self) -> String {
        match self.held.with(|allocation| (allocation.offset(), allocation.len())) {
            Ok((offset, size)) => format!("<kvmem.Allocation of {size} bytes at offset {offset}>"),
            Err(_) => "<kvmem.Allocation, freed>".to_owned(),
        }
    }
}

context_manager!(PyAllocation, |it, _| it.held.take_if_any().map(drop));

#[doc = doc!("AllocationBatch")]
#[pyclass(name = "AllocationBatch", module = "kvmem", frozen, weakref)]
pub(crate) struct PyAllocationBatch {
    held: Holder<Vec<Allocation>>,
}

#[pymethods]
impl PyAllocationBatch {
    fn __len__(&self) -> PyResult<usize> {
        self.held.with(Vec::len)
    }

    #[doc = doc!("AllocationBatch.nbytes")]
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.held.with(Batch::nbytes)
    }

    #[doc = doc!("AllocationBatch.offsets")]
    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Offsets::view(py, self.held.with(Batch::offsets)?)
    }

    #[doc = doc!("AllocationBatch.free")]
    fn free(&self) -> PyResult<()> {
        self.held.take().map(drop)
    }

    #[doc = doc!("AllocationBatch.freed")]
    #[getter]
    fn freed(&self) -> bool {
        self.held.is_gone()
    }

    #[doc = doc!("AllocationBatch.split")]
    fn split(&self) -> PyResult<Vec<PyAllocation>> {
        let all = self.held.take()?;
        Ok(all.into_iter().map(|one| PyAllocation { held: Holder::new(one) }).collect())
    }

    fn __repr__(&self) -> String {
        match self.held.with(|all| (all.len(), Batch::nbytes(all))) {
            Ok((n, size)) => format!("<kvmem.AllocationBatch of {n} × {size} bytes>"),
            Err(_) => "<kvmem.AllocationBatch, freed>".to_owned(),
        }
    }
}

context_manager!(PyAllocationBatch, |it, _| it.held.take_if_any().map(drop));

//! *Region*: memory that is mapped, placed and populated.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use kvmem::arena::{CancelToken, ProgressOptions, Region};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffer::{Bytes, Exported, Span};
use crate::collect::{Link, collected};
use crate::context::context_manager;
use crate::elements::named;
use crate::error;
use crate::holder::{Held, Holder};
use crate::keeper::{Keeper, Memory};
use crate::keywords::Keywords;
use crate::long;
use crate::memory_methods::memory_methods;
use crate::memory_options::MemoryOptions;
use crate::number::{Callback, Int, Seconds};
use crate::options::{self, Threads};
use crate::progress::{self, Listener};
use crate::report::{self, Level};
use crate::size::Size;

impl Held for Arc<Region> {
    const NAME: &'static str = "region";
    const SLOW: bool = true;
}

impl Bytes for Arc<Region> {
    fn span(&self) -> Span {
        Span::writable(self.base().as_ptr(), self.len())
    }
}

#[doc = doc!("Region")]
#[pyclass(name = "Region", module = "kvmem", frozen, weakref)]
pub(crate) struct PyRegion {
    held: Holder<Arc<Region>>,
    keeper: Link<Keeper>,
}

collected!(PyRegion { held, keeper }, |it, py| {
    if it.held.clear(py) {
        it.keeper.cut(py);
    }
});

memory_methods!(PyRegion, Arc<Region>);

impl PyRegion {
    fn new(region: Region) -> PyRegion {
        PyRegion::over(Memory::new(Arc::new(region), None))
    }

    fn over(memory: Memory) -> PyRegion {
        let (region, keeper) = memory.into_parts();
        PyRegion { held: Holder::new(region), keeper }
    }

    /// Returns the region, which is unmapped with its last reference.
    pub(crate) fn region(&self, py: Python<'_>) -> PyResult<Memory> {
        Ok(Memory::new(self.held.with(Arc::clone)?, self.keeper.get(py)))
    }
}

#[pymethods]
impl PyRegion {
    #[new]
    #[pyo3(signature = (size, **options), text_signature = "(size, *, pages=None, \
        strict=False, numa=None, populate=None, shared=False, readers_only=False, \
        guard_pages=False, dont_fork=True, dont_dump=True, progress=None, time_budget=None)")]
    fn create(
        py: Python<'_>,
        size: Size,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<PyRegion> {
        let options = Keywords::new(py, "Region", options);
        let cancel = CancelToken::new();
        let MemoryOptions { ladder, numa, shared, readers_only, guard_pages } =
            MemoryOptions::take(py, &options)?;
        let mut builder = Region::builder(size.bytes())
            .ladder(ladder)
            .numa(numa)
            .populate(options::populate(py, "populate", options.take("populate")?)?)
            .backing(options::backing(shared))
            .readers_only(readers_only)
            .guard_pages(guard_pages)
            .dont_fork(options.flag("dont_fork", true)?)
            .dont_dump(options.flag("dont_dump", true)?)
            .cancel(cancel.clone());
        if let Some(limit) = options.seconds("time_budget")? {
            builder = builder.time_budget(limit);
        }
        let progress = options.take("progress")?;
        options.end()?;
        let listener =
            progress.map(|Callback(callback)| Listener::new(callback, cancel.clone(), size.0, 0));
        if let Some(listener) = listener.clone() {
            builder = builder.progress(move |progress| listener.populate(&progress));
        }
        let region = long::run(py, &cancel, || builder.map());
        let region = region.and_then(|region| region.map_err(|error| error::arena(py, &error)));
        let region = progress::end(py, listener.as_ref(), region)?;
        // In its holder: if logging is interrupted, the region is unmapped without the GIL.
        let made = PyRegion::new(region);
        let region = made.region(py)?;
        report::log_receipt(py, "region", region.receipt())?;
        report::log(py, "region", Level::Info, || format!("mapped: {}", region.receipt()))?;
        Ok(made)
    }

    #[doc = doc!("Region.attach")]
    #[staticmethod]
    #[pyo3(signature = (fd, *, size=None))]
    fn attach(py: Python<'_>, fd: Int<'_>, size: Option<Size>) -> PyResult<PyRegion> {
        let fd = duplicate(py, fd)?;
        let region = py.detach(|| Region::attach(fd, size.map(Size::bytes)));
        region.map(PyRegion::new).map_err(|error| error::arena(py, &error))
    }

    #[doc = doc!("Region.from_buffer")]
    #[staticmethod]
    fn from_buffer(py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<PyRegion> {
        let exported = Exported::of(buffer).map_err(|error| named(py, error, "buffer"))?;
        Memory::over(py, exported).map(PyRegion::over)
    }

    #[doc = doc!("Region.receipt")]
    #[getter]
    fn receipt<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        report::report(py, self.region(py)?.receipt())
    }

    #[doc = doc!("Region.populate")]
    #[pyo3(
        signature = (
            start=Int::usual(0), stop=None, *, threads=None, progress=None, time_budget=None
        ),
        text_signature = "($self, start=0, stop=None, *, threads=None, progress=None, \
            time_budget=None)"
    )]
    fn populate(
        &self,
        py: Python<'_>,
        start: Int<'_>,
        stop: Option<Int<'_>>,
        threads: Option<Threads<'_>>,
        progress: Option<Callback>,
        time_budget: Option<Seconds<'_>>,
    ) -> PyResult<f64> {
        let region = self.region(py)?;
        let (start, stop) = part(py, region.len(), start, stop)?;
        let how = options::populate_now(py, threads)?;
        let cancel = CancelToken::new();
        let mut watch = ProgressOptions::new().cancel(cancel.clone());
        if let Some(limit) = options::seconds(py, "time_budget", time_budget)? {
            watch = watch.time_budget(limit);
        }
        let total = stop.saturating_sub(start) as u64;
        let listener =
            progress.map(|Callback(callback)| Listener::new(callback, cancel.clone(), total, 0));
        if let Some(listener) = listener.clone() {
            watch = watch.progress(move |progress| listener.populate(&progress));
        }
        let done = long::run(py, &cancel, || region.populate(start..stop, how, &watch));
        let done = done.and_then(|done| done.map_err(|error| error::arena(py, &error)));
        Ok(progress::end(py, listener.as_ref(), done)?.seconds)
    }

    #[doc = doc!("Region.populate_aliases")]
    #[pyo3(signature = (*, threads=None))]
    fn populate_aliases(&self, py: Python<'_>, threads: Option<Threads<'_>>) -> PyResult<u64> {
        let how = options::populate_now(py, threads)?;
        let cancel = CancelToken::new();
        let watch = ProgressOptions::new().cancel(cancel.clone());
        let region = self.region(py)?;
        let done = long::run(py, &cancel, || region.populate_aliases(how, &watch))?;
        done.map_err(|error| error::arena(py, &error))
    }

    #[doc = doc!("Region.residency")]
    #[pyo3(
        signature = (start=Int::usual(0), stop=None),
        text_signature = "($self, start=0, stop=None)"
    )]
    fn residency<'py>(
        &self,
        py: Python<'py>,
        start: Int<'_>,
        stop: Option<Int<'_>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let region = self.region(py)?;
        let (start, stop) = part(py, region.len(), start, stop)?;
        let found = py
            .detach(|| region.residency(start..stop))
            .map_err(|error| error::arena(py, &error))?;
        report::named(
            py,
            "Residency",
            (found.len_bytes, found.resident_bytes, found.error_bytes, found.huge_bytes),
        )
    }

    #[doc = doc!("Region.discard")]
    #[pyo3(
        signature = (start=Int::usual(0), stop=None),
        text_signature = "($self, start=0, stop=None)"
    )]
    fn discard(&self, py: Python<'_>, start: Int<'_>, stop: Option<Int<'_>>) -> PyResult<()> {
        let region = self.region(py)?;
        let (start, stop) = part(py, region.len(), start, stop)?;
        py.detach(|| region.discard(start..stop)).map_err(|error| error::arena(py, &error))
    }

    #[doc = doc!("Region.fileno")]
    fn fileno(&self, py: Python<'_>) -> PyResult<c_int> {
        let region = self.region(py)?;
        let fd = region.fd().ok_or_else(|| {
            error::bad_value(
                py,
                "the region's memory is private: make it with shared=True to get a descriptor",
            )
        })?;
        Ok(fd.as_raw_fd())
    }

    #[doc = doc!("Region.close")]
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.held.end(py)?;
        self.keeper.cut(py);
        Ok(())
    }

    #[doc = doc!("Region.closed")]
    #[getter]
    fn closed(&self) -> bool {
        self.held.is_gone()
    }

    fn __repr__(&self) -> String {
        match self.held.with(|region| (region.len(), region.base())) {
            Ok((len, base)) => format!("<kvmem.Region of {len} bytes at {base:p}>"),
            Err(_) => "<kvmem.Region, closed>".to_owned(),
        }
    }
}

context_manager!(PyRegion, PyRegion::close);

/// Converts a range from `start` to `stop`, or to the end.
pub(crate) fn part<'py>(
    py: Python<'py>,
    len: usize,
    start: Int<'py>,
    stop: Option<Int<'py>>,
) -> PyResult<(usize, usize)> {
    let start = start.index(py, "start")?;
    Ok((start, stop.map_or(Ok(len), |stop| stop.index(py, "stop"))?))
}

/// Duplicates a descriptor.
pub(crate) fn duplicate<'py>(py: Python<'py>, fd: Int<'py>) -> PyResult<OwnedFd> {
    let fd = fd.fd(py)?;
    // SAFETY: a borrowed descriptor must not be -1, which `fd` excludes, and must be open while it
    // is borrowed: only for the call below, which passes it to the kernel. If the number names no
    // open descriptor, the kernel returns an error, and nothing else is done with it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    borrowed.try_clone_to_owned().map_err(|error| {
        let message = format!("fd {fd} cannot be duplicated: {error}; give an open descriptor");
        error::bad_descriptor(py, message, fd, None, error.raw_os_error())
    })
}

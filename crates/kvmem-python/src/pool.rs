//! *Pool*: blocks with bytes, offsets and keys.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kvmem::arena::{CancelToken, Populate, ProgressOptions};
use kvmem::pool::{Pool, PoolError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::take_all;
use crate::block::{PyBlock, PyBlockBatch};
use crate::collect::{Plain, collected};
use crate::context::context_manager;
use crate::error::{self, Request};
use crate::holder::{Held, Holder, Lent};
use crate::interrupt::SIGNAL_INTERVAL;
use crate::keywords::Keywords;
use crate::long;
use crate::memory_options::MemoryOptions;
use crate::number::{Callback, Int, Seconds, Several, plain};
use crate::offsets;
use crate::options::{self, Threads};
use crate::progress::{self, Listener};
use crate::report::{self, Level};
use crate::size::Size;

/// Default time to wait: practically forever.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
impl Held for Pool {
    const NAME: &'static str = "pool";
    const VIEWS: &'static str =
        "hold(s), such as that of an engine that has registered it: release them";
    const SLOW: bool = true;
}

#[doc = doc!("Pool")]
#[pyclass(name = "Pool", module = "kvmem", frozen, weakref)]
pub(crate) struct PyPool {
    pub(crate) held: Holder<Pool>,
    at: usize,
    len: u64,
    cancel: CancelToken,
    /// Descriptor of a shared pool. It exists from the beginning, so children that are forked
    /// later have it too.
    fd: Mutex<Option<OwnedFd>>,
    /// Listener of a pool that is initialized in the background.
    listener: Option<Listener>,
}

impl Plain for Pool {}

collected!(PyPool { held, at, len, cancel, fd, listener }, |it, py| {
    if let Some(listener) = &it.listener {
        listener.release(py);
    }
});

impl PyPool {
    /// Returns the pool, for work that takes longer than a call.
    pub(crate) fn pool(&self) -> PyResult<Lent<Pool>> {
        self.held.with(Pool::clone).map(Lent::new)
    }

    /// Returns the pool if it has no holds now. A user that gets a hold while the pool shrinks
    /// reads its length afterwards, like every user.
    fn free_to_shrink(&self) -> PyResult<Lent<Pool>> {
        self.held.change(|pool| pool.clone()).map(Lent::new)
    }
}

#[pymethods]
impl PyPool {
    #[new]
    #[pyo3(signature = (size, **options), text_signature = "(size, *, max_size=None, \
        pages=None, strict=False, numa=None, shared=False, readers_only=False, \
        guard_pages=False, populate='auto', devices=None, policy=None, boundary=None, \
        hot_sizes=None, auto_hot_sizes=True, max_cached_bytes=None, in_background=False, \
        quarantine=False, init_on=None, progress=None)")]
    fn create(py: Python<'_>, size: Size, options: Option<Bound<'_, PyDict>>) -> PyResult<PyPool> {
        let options = Keywords::new(py, "Pool", options);
        let cancel = CancelToken::new();
        let MemoryOptions { ladder, numa, shared, readers_only, guard_pages } =
            MemoryOptions::take(py, &options)?;
        let populate = options.populate()?;
        let registrars = options::devices(py, options.take("devices")?.as_ref())?;
        let in_background = options.flag("in_background", false)?;
        let hot_sizes = options.take::<Several<Size>>("hot_sizes")?;
        let hot_sizes = hot_sizes.map_or_else(Vec::new, |Several(sizes)| sizes);
        let count = registrars.len() as u64;
        let mut builder = Pool::builder(size.bytes())
            .ladder(ladder)
            .numa(numa)
            .backing(options::backing(shared))
            .readers_only(readers_only)
            .guard_pages(guard_pages)
            .populate(populate)
            .registrars(registrars)
            .policy(options::policy(py, options.text("policy")?.as_deref())?)
            .hot_sizes(hot_sizes.into_iter().map(|Size(bytes)| bytes))
            .auto_hot_sizes(options.flag("auto_hot_sizes", true)?)
            .in_background(in_background)
            .quarantine(options.flag("quarantine", false)?)
            .init_on(options::init_on(py, options.text("init_on")?.as_deref())?)
            .cancel(cancel.clone());
        if let Some(size) = options.take::<Size>("max_size")? {
            builder = builder.max_size(size.bytes());
        }
        if let Some(bytes) = options.bytes("boundary")? {
            builder = builder.boundary(bytes);
        }
        if let Some(bytes) = options.bytes("max_cached_bytes")? {
            builder = builder.max_cached_bytes(bytes);
        }
        let progress = options.take("progress")?;
        options.end()?;
        let listener = progress.map(|Callback(callback)| {
            let populated = if populate == Populate::None { 0 } else { size.0 };
            Listener::new(callback, cancel.clone(), populated, size.0.saturating_mul(count))
        });
        if let Some(listener) = listener.clone() {
            let other = listener.clone();
            builder = if in_background {
                builder
                    .on_populate(move |progress| listener.populate_unwaited(&progress))
                    .on_register(move |progress| other.register_unwaited(&progress))
            } else {
                builder
                    .on_populate(move |progress| listener.populate(&progress))
                    .on_register(move |progress| other.register(&progress))
            };
        }
        let built = long::run(py, &cancel, || builder.build());
        let mut built = built.and_then(|built| built.map_err(|error| error::pool(py, &error)));
        if !in_background {
            built = progress::end(py, listener.as_ref(), built);
        }
        let pool = built?;
        let built = pool.report();
        let (at, len) = (pool.as_ptr().addr(), built.max_bytes);
        let fd = if shared {
            Some(share(&pool, true).map_err(|error| error::pool(py, &error))?)
        } else {
            None
        };
        let listener = listener.filter(|_| in_background);
        // In its holder: if logging is interrupted, the pool is dropped without the GIL.
        let made =
            PyPool { held: Holder::new(pool), at, len, cancel, fd: Mutex::new(fd), listener };
        report::log_receipt(py, "pool", &built.receipt)?;
        report::log(py, "pool", Level::Info, || format!("built: {built}"))?;
        Ok(made)
    }

    #[doc = doc!("Pool.allocate")]
    #[pyo3(signature = (nbytes, *, align=None))]
    fn allocate(&self, py: Python<'_>, nbytes: Size, align: Option<Int<'_>>) -> PyResult<PyBlock> {
        let align = align.map(|align| align.index(py, "align")).transpose()?;
        let allocated = self.held.with(|pool| match align {
            None => pool.allocate(nbytes.bytes()),
            Some(align) => pool.allocate_aligned(nbytes.bytes(), align),
        })?;
        match allocated {
            Ok(block) => Ok(PyBlock::new(block)),
            Err(error) => {
                let align = align.map(|align| align as u64);
                Err(error::block_request(py, &error, Request { nbytes: nbytes.0, align, n: None }))
            }
        }
    }

    #[doc = doc!("Pool.allocate_batch")]
    fn allocate_batch(&self, py: Python<'_>, nbytes: Size, n: Int<'_>) -> PyResult<PyBlockBatch> {
        let n = n.index(py, "n")?;
        let pool = self.pool()?;
        let allocated = py.detach(|| pool.allocate_batch(nbytes.bytes(), n));
        let blocks = allocated.map_err(|error| {
            error::block_request(
                py,
                &error,
                Request { nbytes: nbytes.0, align: None, n: Some(n as u64) },
            )
        })?;
        Ok(PyBlockBatch { held: Holder::new(blocks) })
    }

    #[doc = doc!("Pool.allocate_scattered")]
    fn allocate_scattered(
        &self,
        py: Python<'_>,
        total: Size,
        max_blocks: Int<'_>,
    ) -> PyResult<Vec<PyBlock>> {
        let max_blocks = max_blocks.within(py, "max_blocks", 1..=u64::MAX)? as usize;
        let allocated =
            self.held.with(|pool| pool.allocate_scattered(total.bytes(), max_blocks))?;
        let blocks = allocated.map_err(|error| error::pool(py, &error))?;
        Ok(blocks.into_iter().map(PyBlock::new).collect())
    }

    #[doc = doc!("Pool.free_batch")]
    fn free_batch(&self, py: Python<'_>, blocks: &Bound<'_, PyAny>) -> PyResult<()> {
        let pool = self.pool()?;
        if let Ok(batch) = blocks.cast::<PyBlockBatch>() {
            let blocks = batch.get().held.take()?;
            py.detach(|| pool.free_batch(blocks));
            return Ok(());
        }
        let blocks = take_all(blocks, "blocks", |one: &PyBlock| &one.held)?;
        py.detach(|| pool.free_batch(blocks));
        Ok(())
    }

    #[doc = doc!("Pool.ptr")]
    #[getter]
    fn ptr(&self) -> PyResult<usize> {
        self.held.with(|_| self.at)
    }

    #[doc = doc!("Pool.nbytes")]
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.held.with(|_| self.len)
    }

    #[doc = doc!("Pool.capacity")]
    #[getter]
    fn capacity(&self) -> PyResult<u64> {
        self.held.with(Pool::capacity)
    }

    #[doc = doc!("Pool.ready_bytes")]
    #[getter]
    fn ready_bytes(&self) -> PyResult<u64> {
        self.held.with(Pool::ready_bytes)
    }

    #[doc = doc!("Pool.initializing")]
    #[getter]
    fn initializing(&self) -> PyResult<bool> {
        self.held.with(Pool::is_initializing)
    }

    #[doc = doc!("Pool.wait_ready")]
    #[pyo3(signature = (nbytes=None, timeout=None))]
    fn wait_ready(
        &self,
        py: Python<'_>,
        nbytes: Option<Size>,
        timeout: Option<Seconds<'_>>,
    ) -> PyResult<u64> {
        let pool = self.pool()?;
        let bytes = nbytes.map_or(u64::MAX, |Size(bytes)| bytes);
        let mut remaining = options::seconds(py, "timeout", timeout)?.unwrap_or(FOREVER);
        let ready = loop {
            let turn = remaining.min(SIGNAL_INTERVAL);
            let ready = py.detach(|| pool.wait_ready(bytes, turn));
            remaining -= turn;
            if ready >= bytes || remaining.is_zero() || !pool.is_initializing() {
                break ready;
            }
            py.check_signals()?;
        };
        Ok(ready)
    }

    #[doc = doc!("Pool.cancel")]
    fn cancel(&self) {
        self.cancel.cancel();
    }

    #[doc = doc!("Pool.grow_to")]
    fn grow_to(&self, py: Python<'_>, size: Size) -> PyResult<()> {
        let pool = self.pool()?;
        let grown = long::run(py, &self.cancel, || pool.grow_to(size.0))?;
        grown.map_err(|error| error::pool(py, &error))
    }

    #[doc = doc!("Pool.shrink_to")]
    fn shrink_to(&self, py: Python<'_>, size: Size) -> PyResult<u64> {
        let pool = self.free_to_shrink()?;
        let shrunk = py.detach(|| pool.shrink_to(size.0));
        Ok(shrunk.map_err(|error| error::pool(py, &error))?.bytes)
    }

    #[doc = doc!("Pool.shrink")]
    fn shrink(&self, py: Python<'_>) -> PyResult<u64> {
        let pool = self.free_to_shrink()?;
        let shrunk = py.detach(|| pool.shrink());
        Ok(shrunk.map_err(|error| error::pool(py, &error))?.bytes)
    }

    #[doc = doc!("Pool.trim")]
    fn trim(&self, py: Python<'_>) -> PyResult<()> {
        let pool = self.pool()?;
        py.detach(|| pool.trim());
        Ok(())
    }

    #[doc = doc!("Pool.quarantine_block")]
    fn quarantine_block(&self, block: &Bound<'_, PyBlock>, why: String) -> PyResult<()> {
        let pool = self.pool()?;
        pool.quarantine_block(block.get().held.take()?, why);
        Ok(())
    }

    #[doc = doc!("Pool.report")]
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        report::report(py, &self.held.with(Pool::report)?)
    }

    #[doc = doc!("Pool.metrics")]
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        offsets::metrics(py, &self.held.with(Pool::metrics)?)
    }

    #[doc = doc!("Pool.stats")]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        report::data(py, &self.held.with(Pool::stats)?)
    }

    #[doc = doc!("Pool.map")]
    fn map<'py>(&self, py: Python<'py>) -> PyResult<Vec<(u64, u64, Bound<'py, PyAny>)>> {
        let map = self.held.with(Pool::map)?;
        map.iter()
            .map(|range| Ok((range.offset, range.size, report::data(py, &range.state)?)))
            .collect()
    }

    #[doc = doc!("Pool.devices")]
    #[getter]
    fn devices(&self) -> PyResult<Vec<String>> {
        self.held.with(Pool::devices)
    }

    #[doc = doc!("Pool.boundary")]
    #[getter]
    fn boundary(&self) -> PyResult<Option<u64>> {
        self.held.with(Pool::boundary)
    }

    #[doc = doc!("Pool.share_id")]
    #[getter]
    fn share_id(&self) -> PyResult<Option<u64>> {
        self.held.with(Pool::share_id)
    }

    #[doc = doc!("Pool.fileno")]
    fn fileno(&self, py: Python<'_>) -> PyResult<c_int> {
        self.held.with(|_| ())?;
        let fd =
            self.fd.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(AsRawFd::as_raw_fd);
        fd.ok_or_else(|| error::pool(py, &PoolError::Private))
    }

    #[doc = doc!("Pool.share")]
    #[pyo3(signature = (*, writable=false))]
    fn share(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = plain)] writable: bool,
    ) -> PyResult<c_int> {
        let pool = self.pool()?;
        share(&pool, writable).map(IntoRawFd::into_raw_fd).map_err(|error| error::pool(py, &error))
    }

    #[doc = doc!("Pool.populate_aliases")]
    #[pyo3(signature = (*, threads=None))]
    fn populate_aliases(&self, py: Python<'_>, threads: Option<Threads<'_>>) -> PyResult<u64> {
        let how = options::populate_now(py, threads)?;
        let cancel = CancelToken::new();
        let watch = ProgressOptions::new().cancel(cancel.clone());
        let pool = self.pool()?;
        let done = long::run(py, &cancel, || pool.populate_aliases(how, &watch))?;
        done.map_err(|error| error::pool(py, &error))
    }

    #[doc = doc!("Pool.check")]
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let pool = self.pool()?;
        py.detach(|| pool.check()).map_err(|error| error::defect(&error))
    }

    #[doc = doc!("Pool.close")]
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.held.end(py)?;
        *self.fd.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    #[doc = doc!("Pool.closed")]
    #[getter]
    fn closed(&self) -> bool {
        self.held.is_gone()
    }

    fn __repr__(&self) -> String {
        match self.held.with(|pool| (pool.capacity(), pool.metrics())) {
            Ok((capacity, metrics)) => {
                let (allocated, live) = (metrics.allocated, metrics.live);
                format!("<kvmem.Pool of {capacity} bytes, {allocated} allocated in {live} blocks>")
            }
            Err(_) => "<kvmem.Pool, closed>".to_owned(),
        }
    }
}

context_manager!(PyPool, PyPool::close);

fn share(pool: &Pool, writable: bool) -> Result<OwnedFd, PoolError> {
    if writable {
        // SAFETY: `share` forbids writes to bytes of which a thread uses a slice. This module makes
        // no slices of a block's bytes: it copies by address. Python code, in all processes, has to
        // agree on its writes, as for all shared memory.
        unsafe { pool.share() }
    } else {
        pool.share_read_only()
    }
}

//! *Pool*: blocks with bytes, offsets and keys.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kvmem::arena::{Cancel, Populate, Watch};
use kvmem::pool::{Pool, PoolError};
use pyo3::prelude::*;

use crate::batch::take_all;
use crate::block::{PyBlock, PyBlockBatch};
use crate::collect::{Plain, collected};
use crate::context::context_manager;
use crate::error;
use crate::hold::PyHold;
use crate::holder::{Held, Holder, Lent};
use crate::long;
use crate::offsets;
use crate::options::{self, Threads, Words};
use crate::progress::{self, Listener};
use crate::report::{self, Level};
use crate::size::Size;

/// The usual number of seconds to wait: for ever, near enough.
const EVER: Duration = Duration::from_secs(u32::MAX as u64);
/// How long is waited between two looks for a signal.
const LOOK: Duration = Duration::from_millis(50);

impl Held for Pool {
    const NAME: &'static str = "pool";
    const VIEWS: &'static str = "hold(s), such as an engine's that has registered it: end that";
    const SLOW: bool = true;
}

/// Memory that is mapped, populated and registered, and handed out in blocks.
#[pyclass(name = "Pool", module = "kvmem", frozen, weakref)]
pub(crate) struct PyPool {
    pub(crate) held: Holder<Pool>,
    at: usize,
    len: u64,
    cancel: Cancel,
    /// Of a shared pool, from the beginning: children that are forked later have it too.
    fd: Mutex<Option<OwnedFd>>,
    /// Of a pool that is made ready in the background.
    listener: Option<Listener>,
}

impl Plain for Pool {}

collected!(PyPool { held, at, len, cancel, fd, listener }, |it, py| {
    if let Some(listener) = &it.listener {
        listener.let_go(py);
    }
});

impl PyPool {
    /// The pool, for work that takes longer than a call.
    pub(crate) fn pool(&self) -> PyResult<Lent<Pool>> {
        self.held.with(Pool::clone).map(Lent::new)
    }

    /// Likewise, if nobody has a hold on it now. Who gets one while it shrinks asks then how long it is, as everybody does.
    fn free_to_shrink(&self) -> PyResult<Lent<Pool>> {
        self.held.change(|pool| pool.clone()).map(Lent::new)
    }
}

#[pymethods]
impl PyPool {
    #[new]
    #[pyo3(signature = (
        size, *, max_size=None, pages=None, strict=false, numa=None, shared=false, guard_pages=false,
        populate=Some(Threads::Word("auto".to_owned())), devices=None, policy=None, boundary=None, hot_sizes=None, learn=true,
        stranded=None, in_background=false, quarantine=false, progress=None
    ), text_signature = "(size, *, max_size=None, pages=None, strict=False, numa=None, shared=False, guard_pages=False, \
        populate='auto', devices=None, policy=None, boundary=None, hot_sizes=None, learn=True, stranded=None, \
        in_background=False, quarantine=False, progress=None)")]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn create(
        py: Python<'_>,
        size: Size,
        max_size: Option<Size>,
        pages: Option<Words>,
        strict: bool,
        numa: Option<&str>,
        shared: bool,
        guard_pages: bool,
        populate: Option<Threads>,
        devices: Option<Words>,
        policy: Option<&str>,
        boundary: Option<Size>,
        hot_sizes: Option<Vec<Size>>,
        learn: bool,
        stranded: Option<Size>,
        in_background: bool,
        quarantine: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<PyPool> {
        let cancel = Cancel::new();
        let populate = options::populate(py, populate.as_ref())?;
        let registrars = options::devices(py, devices.as_ref())?;
        let count = registrars.len() as u64;
        let mut builder = Pool::builder(size.bytes())
            .ladder(options::ladder(py, pages.as_ref(), strict)?)
            .numa(options::numa(py, numa)?)
            .backing(options::backing(shared))
            .guard_pages(guard_pages)
            .populate(populate)
            .registrars(registrars)
            .policy(options::policy(py, policy)?)
            .hot_sizes(hot_sizes.unwrap_or_default().into_iter().map(|Size(bytes)| bytes))
            .learn(learn)
            .in_background(in_background)
            .quarantine(quarantine)
            .cancel(cancel.clone());
        if let Some(size) = max_size {
            builder = builder.max_size(size.bytes());
        }
        if let Some(Size(bytes)) = boundary {
            builder = builder.boundary(bytes);
        }
        if let Some(Size(bytes)) = stranded {
            builder = builder.stranded(bytes);
        }
        let listener = progress.map(|callback| {
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
        let (pool, built) = built?;
        report::log_receipt(py, "pool", &built.receipt);
        report::log(py, "pool", Level::Info, || format!("built: {built}"));
        let (at, len) = (pool.as_ptr().addr(), built.most_bytes);
        let fd =
            if shared { Some(share(&pool, true).map_err(|error| error::pool(py, &error))?) } else { None };
        let listener = listener.filter(|_| in_background);
        Ok(PyPool { held: Holder::new(pool), at, len, cancel, fd: Mutex::new(fd), listener })
    }

    /// A block of `nbytes` bytes.
    #[pyo3(signature = (nbytes, *, align=None))]
    fn allocate(&self, py: Python<'_>, nbytes: Size, align: Option<usize>) -> PyResult<PyBlock> {
        let granted = self.held.with(|pool| match align {
            None => pool.allocate(nbytes.bytes()),
            Some(align) => pool.allocate_aligned(nbytes.bytes(), align),
        })?;
        match granted {
            Ok(block) => Ok(PyBlock::new(block)),
            Err(error) => Err(error::pool(py, &error)),
        }
    }

    /// `n` blocks of `nbytes` bytes each, all of them or none.
    fn allocate_batch(&self, py: Python<'_>, nbytes: Size, n: usize) -> PyResult<PyBlockBatch> {
        let pool = self.pool()?;
        let granted = py.detach(|| pool.allocate_batch(nbytes.bytes(), n));
        let blocks = granted.map_err(|error| error::pool(py, &error))?;
        Ok(PyBlockBatch { held: Holder::new(blocks) })
    }

    /// `total` bytes in at most `max_blocks` blocks, as few and as long as can be had.
    fn allocate_scattered(&self, py: Python<'_>, total: Size, max_blocks: usize) -> PyResult<Vec<PyBlock>> {
        let granted = self.held.with(|pool| pool.allocate_scattered(total.bytes(), max_blocks))?;
        let blocks = granted.map_err(|error| error::pool(py, &error))?;
        Ok(blocks.into_iter().map(PyBlock::new).collect())
    }

    /// Frees many at once, neighbours joined first: a batch, or any number of blocks. All of them, or none.
    fn free_batch(&self, py: Python<'_>, blocks: &Bound<'_, PyAny>) -> PyResult<()> {
        let pool = self.pool()?;
        if let Ok(batch) = blocks.cast::<PyBlockBatch>() {
            let blocks = batch.get().held.take()?;
            py.detach(|| pool.free_run(blocks));
            return Ok(());
        }
        let blocks = take_all(blocks, |one: &PyBlock| &one.held)?;
        py.detach(|| pool.free_run(blocks));
        Ok(())
    }

    /// The first address. What is mapped from here on is `nbytes` long.
    #[getter]
    fn ptr(&self) -> PyResult<usize> {
        self.held.with(|_| self.at)
    }

    /// Bytes of addresses: what the pool can grow to.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.held.with(|_| self.len)
    }

    /// Bytes that blocks can have, when all of it is ready.
    #[getter]
    fn capacity(&self) -> PyResult<u64> {
        self.held.with(Pool::capacity)
    }

    /// Bytes that can be used, whether or not they are in use.
    #[getter]
    fn ready_bytes(&self) -> PyResult<u64> {
        self.held.with(Pool::ready_bytes)
    }

    /// Whether parts are still being made ready.
    #[getter]
    fn under_way(&self) -> PyResult<bool> {
        self.held.with(Pool::is_under_way)
    }

    /// Waits until so many bytes (all of them, if nothing is said) are ready, no more will be, or the seconds are over; returns how many are ready
    /// then.
    #[pyo3(signature = (nbytes=None, timeout=None))]
    fn wait_ready(&self, py: Python<'_>, nbytes: Option<Size>, timeout: Option<f64>) -> PyResult<u64> {
        let pool = self.pool()?;
        let bytes = nbytes.map_or(u64::MAX, |Size(bytes)| bytes);
        let mut left = options::seconds(py, timeout)?.unwrap_or(EVER);
        let ready = loop {
            let turn = left.min(LOOK);
            let ready = py.detach(|| pool.wait_ready(bytes, turn));
            left -= turn;
            if ready >= bytes || left.is_zero() || !pool.is_under_way() {
                break ready;
            }
            py.check_signals()?;
        };
        Ok(ready)
    }

    /// Ends what is being made ready in the background: no further part is.
    fn cancel(&self) {
        self.cancel.cancel();
    }

    /// The pool is at least so long afterwards.
    fn grow_to(&self, py: Python<'_>, size: Size) -> PyResult<()> {
        let pool = self.pool()?;
        let grown = long::run(py, &self.cancel, || pool.grow_to(size.0))?;
        grown.map_err(|error| error::pool(py, &error))
    }

    /// The pool is as short as whole parts allow, but not shorter than this; returns by how many bytes it is shorter.
    fn shrink_to(&self, py: Python<'_>, size: Size) -> PyResult<u64> {
        let pool = self.free_to_shrink()?;
        let shrunk = py.detach(|| pool.shrink_to(size.0));
        Ok(shrunk.map_err(|error| error::pool(py, &error))?.bytes)
    }

    /// As `shrink_to`, as far as what is in use allows.
    fn shrink(&self, py: Python<'_>) -> PyResult<u64> {
        let pool = self.free_to_shrink()?;
        let shrunk = py.detach(|| pool.shrink());
        Ok(shrunk.map_err(|error| error::pool(py, &error))?.bytes)
    }

    /// Takes back what threads have cached, so that neighbours join.
    fn trim(&self, py: Python<'_>) -> PyResult<()> {
        let pool = self.pool()?;
        py.detach(|| pool.trim());
        Ok(())
    }

    /// Keeps the bytes of a block from use for as long as the pool.
    fn condemn(&self, block: &Bound<'_, PyBlock>, why: String) -> PyResult<()> {
        let pool = self.pool()?;
        pool.condemn(block.get().held.take()?, why);
        Ok(())
    }

    /// What the pool is made of and how it came to be, as it is now.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        report::report(py, &self.held.with(Pool::report)?)
    }

    /// Figures of what is ready.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        offsets::metrics(py, &self.held.with(Pool::metrics)?)
    }

    /// What is cached, and what has been done.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        report::data(py, &self.held.with(Pool::stats)?)
    }

    /// All of the pool in order of addresses: (offset, size, state), where that is "used", "cached" or "free".
    fn map<'py>(&self, py: Python<'py>) -> PyResult<Vec<(u64, u64, Bound<'py, PyAny>)>> {
        let map = self.held.with(Pool::map)?;
        map.iter().map(|range| Ok((range.offset, range.size, report::data(py, &range.state)?))).collect()
    }

    /// The devices' names, in order.
    #[getter]
    fn devices(&self) -> PyResult<Vec<String>> {
        self.held.with(Pool::devices)
    }

    /// What no block straddles, in bytes; None: there is no such edge.
    #[getter]
    fn boundary(&self) -> PyResult<Option<u64>> {
        self.held.with(Pool::boundary)
    }

    /// By what references name this pool; None: its memory is private.
    #[getter]
    fn number(&self) -> PyResult<Option<u64>> {
        self.held.with(Pool::number)
    }

    /// A descriptor of the pool's memory, to read and write, which belongs to the pool.
    fn fileno(&self, py: Python<'_>) -> PyResult<c_int> {
        self.held.with(|_| ())?;
        let fd = self.fd.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(AsRawFd::as_raw_fd);
        fd.ok_or_else(|| error::pool(py, &PoolError::Private))
    }

    /// A new descriptor of the pool's memory, to be sent to another process and then closed by the caller.
    #[pyo3(signature = (*, writable=false))]
    fn share(&self, py: Python<'_>, writable: bool) -> PyResult<c_int> {
        let pool = self.pool()?;
        share(&pool, writable).map(IntoRawFd::into_raw_fd).map_err(|error| error::pool(py, &error))
    }

    /// Makes its pages resident in the other mappings that this process has of its memory; returns how many bytes those have.
    #[pyo3(signature = (*, threads=None))]
    fn populate_elsewhere(&self, py: Python<'_>, threads: Option<Threads>) -> PyResult<u64> {
        let how = options::populate_now(py, threads.as_ref())?;
        let cancel = Cancel::new();
        let watch = Watch::new().cancel(cancel.clone());
        let pool = self.pool()?;
        let done = long::run(py, &cancel, || pool.populate_elsewhere(how, &watch))?;
        done.map_err(|error| error::pool(py, &error))
    }

    /// Keeps it from being closed or made shorter.
    fn hold(slf: &Bound<'_, Self>) -> PyResult<PyHold> {
        PyHold::pool(slf)
    }

    /// Checks the books.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let pool = self.pool()?;
        py.detach(|| pool.check()).map_err(|error| error::defect(&error))
    }

    /// Gives the pool up. Blocks stay good; the memory goes with the last of them.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.held.end(py)?;
        *self.fd.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    /// Whether it has been closed.
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
        // SAFETY: this module makes no slices of a block's bytes that last: it copies, by address. Who writes what when is up to
        // those who have views, in whichever process.
        unsafe { pool.share() }
    } else {
        pool.share_read_only()
    }
}

//! *KvCache*: values under keys, in blocks of a pool.
//!
//! With a *spill*, a lower tier, what is evicted is not lost. It is a Python object with four
//! methods: `evicted(pinned)` is given each value that leaves the cache for room, `fetch(cache,
//! key)` is requested for what the cache does not have, `forget(key)` and `forget_all()` are told what
//! was taken out, and `close()` ends it. They are called with no lock held: neither the cache's nor
//! a holder's. Until `evicted`, `forget` and `forget_all` have returned, the cache gives no lease
//! on the keys concerned.

use std::sync::Arc;

use kvmem::pool::KvCache;
use kvmem::pool::kv_cache::{Eviction, Lease, Leased, Pinned, Reservation};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::block::{key, keys, write};
use crate::buffer::{Bytes, Source, Span, memory_methods};
use crate::cache_key::{AsCacheKey, Cache, CacheKey, Name};
use crate::collect::{Link, Plain, collected, plain};
use crate::context::context_manager;
use crate::error;
use crate::holder::{Held, Holder, Lent, drop_value};
use crate::lower_tier::{self, LowerTier, evicting};
use crate::number::{Exactly, Int};
use crate::pool::PyPool;
use crate::report;
use crate::size::Size;

impl Held for Cache {
    const NAME: &'static str = "cache";
    const SLOW: bool = true;
}

/// Values under keys, in blocks of a pool: found by any thread, pinned while they are used,
/// evicted when room is needed.
///
/// Keys are ``int`` (127 bits and a sign), ``bytes`` or ``str``; keys of different types never
/// equal each other. A cache is true, also when it is empty.
///
/// Options:
///
/// - ``pool``: the blocks come from it. It may have other users.
/// - ``max_bytes``: the most bytes held. None: what finds room in the pool.
/// - ``max_blocks``: the most values held. None: about 2**32.
/// - ``watermarks``: ``(low, high)`` in bytes: an insertion that leaves more than ``high`` bytes
///   evicts down to ``low``. None: evict only for the value to be inserted.
/// - ``eviction``: ``lru`` or ``scan-resistant``.
/// - ``shards``: the parts that keys are divided into, rounded up to a power of two. None: four for
///   each processor, at least 16; fewer if ``max_blocks`` is small.
/// - ``spill``: a lower tier for what is evicted, such as :class:`kvmem.mooncake.Store`: see
///   :mod:`kvmem.spill`.
///
/// Raises :class:`BadValueError`.
#[pyclass(name = "KvCache", module = "kvmem", frozen, weakref)]
pub(crate) struct PyKvCache {
    held: Holder<Cache>,
    pool: Link<PyPool>,
    spill: Option<Arc<LowerTier>>,
}

impl PyKvCache {
    fn cache(&self) -> PyResult<Lent<Cache>> {
        self.held.with(KvCache::clone).map(Lent::new)
    }

    /// The lower tier, unless there is none any more.
    fn tier<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        Some(self.spill.as_ref()?.object.get(py)?.into_bound(py))
    }

    /// Room for a value, and for what the lower tier raises meanwhile.
    fn room(&self, py: Python<'_>, key: CacheKey<'_>, len: usize) -> PyResult<Reservation<Name>> {
        let name = key.to_name();
        let room = if self.spill.is_none() {
            // Without a tier this runs no Python, and drops nothing that takes long.
            self.held.with(|cache| cache.reserve(name, len))?
        } else {
            let cache = self.cache()?;
            evicting(|| cache.reserve(name, len))?
        };
        room.map_err(|error| error::cache(py, &error))
    }
}

impl Plain for Cache {}

collected!(PyKvCache { held, pool, spill }, |it, py| {
    it.pool.cut(py);
    if let Some(tier) = &it.spill {
        tier.object.cut(py);
    }
});

impl Drop for PyKvCache {
    fn drop(&mut self) {
        // The closure in the library may live on, in a clone that another thread is about to drop.
        if let Some(tier) = &self.spill {
            drop(tier.object.take());
        }
    }
}

#[pymethods]
impl PyKvCache {
    #[new]
    #[pyo3(signature = (pool, *, max_bytes=None, max_blocks=None, watermarks=None, eviction="lru", shards=None, spill=None))]
    fn create(
        pool: Bound<'_, PyPool>,
        max_bytes: Option<Size>,
        max_blocks: Option<Int<'_>>,
        watermarks: Option<Exactly<Size, 2>>,
        eviction: &str,
        shards: Option<Int<'_>>,
        spill: Option<Bound<'_, PyAny>>,
    ) -> PyResult<PyKvCache> {
        let py = pool.py();
        let eviction = match eviction {
            "lru" => Eviction::Lru,
            "scan-resistant" => Eviction::ScanResistant,
            other => {
                let message = format!("{other:?} is no eviction: say lru or scan-resistant");
                return Err(error::bad_value(py, message));
            }
        };
        let memory = pool.get().pool()?;
        let mut builder = KvCache::builder(&memory).eviction(eviction);
        if let Some(Size(bytes)) = max_bytes {
            builder = builder.max_bytes(bytes);
        }
        if let Some(blocks) = max_blocks {
            builder = builder.max_blocks(blocks.u64(py, "max_blocks")?);
        }
        if let Some(Exactly([Size(low), Size(high)])) = watermarks {
            builder = builder.watermarks(low, high);
        }
        if let Some(shards) = shards {
            builder = builder.shards(shards.index(py, "shards")?);
        }
        let spill = spill.map(|spill| lower_tier::of(&spill, &pool)).transpose()?;
        let spill = spill.map(|tier| Arc::new(LowerTier::new(tier.unbind())));
        if let Some(tier) = spill.clone() {
            builder = builder.on_evict(move |pinned| tier.put(pinned));
        }
        let cache = builder.build().map_err(|error| error::cache_setup(py, &error))?;
        Ok(PyKvCache { held: Holder::new(cache), pool: Link::new(Some(pool.unbind())), spill })
    }

    /// Copies a value into a block and puts it under ``key``. Evicts until it fits.
    ///
    /// Raises :class:`OutOfSpaceError` if it cannot fit, and what a lower tier raises that is no
    /// ``Exception``, such as ``KeyboardInterrupt``. Nothing is put in then, unless the tier was
    /// called to evict down to the low watermark, which comes after.
    ///
    /// ``depth`` is how many blocks of the prefix come before the value: blocks at the end of a
    /// prefix are evicted before those at its start.
    #[pyo3(
        signature = (key, value, *, depth=Int::usual(0)),
        text_signature = "($self, key, value, *, depth=0)"
    )]
    fn insert(
        &self,
        py: Python<'_>,
        key: CacheKey<'_>,
        value: &Bound<'_, PyAny>,
        depth: Int<'_>,
    ) -> PyResult<()> {
        let depth = depth.u32(py, "depth")?;
        let source = Source::of(value)?;
        let mut room = self.room(py, key, source.len())?;
        room.set_depth(depth);
        // SAFETY: the room is as long as the source, and nobody else's.
        unsafe { source.copy_to(py, room.block().as_ptr().cast_mut()) };
        evicting(|| drop(room.commit()))
    }

    /// Makes room for a value of ``nbytes`` bytes, to be written in place and then committed.
    ///
    /// Raises as ``insert``.
    #[pyo3(
        signature = (key, nbytes, *, depth=Int::usual(0)),
        text_signature = "($self, key, nbytes, *, depth=0)"
    )]
    fn reserve(
        slf: &Bound<'_, Self>,
        key: CacheKey<'_>,
        nbytes: Size,
        depth: Int<'_>,
    ) -> PyResult<PyReservation> {
        let depth = depth.u32(slf.py(), "depth")?;
        let mut room = slf.get().room(slf.py(), key, nbytes.bytes())?;
        room.set_depth(depth);
        Ok(PyReservation { held: Holder::new(room), cache: Link::new(Some(slf.clone().unbind())) })
    }

    /// The value under ``key``, pinned; it counts as used. With a spill, what is not here is
    /// fetched from there.
    fn get<'py>(slf: &Bound<'py, Self>, key: CacheKey<'_>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (this, py) = (slf.get(), slf.py());
        if let Some(pinned) = this.held.with(|cache| cache.get(&key as &dyn AsCacheKey))? {
            return Ok(Some(Bound::new(py, PyPinned::new(pinned))?.into_any()));
        }
        let Some(tier) = this.tier(py) else { return Ok(None) };
        let found = tier.call_method1("fetch", (slf, &key))?;
        Ok((!found.is_none()).then_some(found))
    }

    /// The right to put in what is fetched from a lower tier. The value, if there is one; None
    /// if what the lower tier has may be old, so take it for a miss.
    ///
    /// Take it before the lower tier is asked, and put in by ``reservation.commit(lease=…)``.
    fn lease<'py>(
        slf: &Bound<'py, Self>,
        key: CacheKey<'_>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = slf.py();
        Ok(match slf.get().cache()?.lease(&key as &dyn AsCacheKey) {
            Leased::Lease(lease) => {
                let cache = Link::new(Some(slf.clone().unbind()));
                Some(Bound::new(py, PyLease { held: Holder::new(lease), cache })?.into_any())
            }
            Leased::Present(pinned) => Some(Bound::new(py, PyPinned::new(pinned))?.into_any()),
            Leased::Unavailable => None,
        })
    }

    /// Takes the value under ``key`` out, and returns it.
    fn remove(&self, py: Python<'_>, key: CacheKey<'_>) -> PyResult<Option<PyPinned>> {
        let borrowed: &dyn AsCacheKey = &key;
        let found = match self.tier(py) {
            None => self.held.with(|cache| cache.remove(borrowed))?,
            Some(tier) => self
                .cache()?
                .remove_with(borrowed, || tier.call_method1("forget", (&key,)).map(drop))?,
        };
        Ok(found.map(PyPinned::new))
    }

    fn __contains__(&self, key: CacheKey<'_>) -> PyResult<bool> {
        self.held.with(|cache| cache.contains(&key as &dyn AsCacheKey))
    }

    fn __len__(&self) -> PyResult<usize> {
        self.held.with(|cache| cache.len() as usize)
    }

    /// A cache is true, empty or not, so that `cache or default` is the cache.
    fn __bool__(&self) -> bool {
        true
    }

    /// Takes every value out. Pins stay good.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.cache()?;
        let tier = self.tier(py).map(Bound::unbind);
        py.detach(|| match &tier {
            None => {
                cache.clear();
                Ok(())
            }
            Some(tier) => cache
                .clear_with(|| Python::attach(|py| tier.call_method0(py, "forget_all").map(drop))),
        })
    }

    /// Evicts until at most ``nbytes`` bytes are held, or nothing is left that can go.
    ///
    /// Returns how many bytes are held. Raises what a lower tier raises that is no ``Exception``,
    /// such as ``KeyboardInterrupt``; further values are dropped then instead of given to it.
    fn evict_to(&self, py: Python<'_>, nbytes: Size) -> PyResult<u64> {
        let cache = self.cache()?;
        evicting(|| py.detach(|| cache.evict_to(nbytes.0)))
    }

    /// Bytes held, those being written included.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.held.with(KvCache::bytes)
    }

    /// The pool that the blocks are of.
    #[getter]
    fn pool(&self, py: Python<'_>) -> PyResult<Py<PyPool>> {
        self.pool.get(py).ok_or_else(|| error::gone(Cache::NAME, Cache::END))
    }

    /// The lower tier.
    #[getter]
    fn spill<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.tier(py)
    }

    /// Figures.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self.held.with(KvCache::stats)?;
        report::named(
            py,
            "KvCacheStats",
            (
                stats.blocks,
                stats.bytes,
                stats.hits,
                stats.misses,
                stats.insertions,
                stats.replacements,
                stats.evictions,
                stats.removals,
                stats.insertion_failures,
                stats.sink_failures + self.spill.as_ref().map_or(0, |tier| tier.dropped()),
                stats.superseded,
            ),
        )
    }

    /// Gives the cache up, and all that it holds; closes its spill. Pins stay good.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.held.end(py)?;
        if let Some(tier) = self.tier(py) {
            tier.call_method0("close")?;
        }
        Ok(())
    }

    /// Whether it has been closed.
    #[getter]
    fn closed(&self) -> bool {
        self.held.is_gone()
    }

    fn __repr__(&self) -> String {
        match self.held.with(|cache| (cache.len(), cache.bytes())) {
            Ok((blocks, bytes)) => format!("<kvmem.KvCache of {blocks} blocks, {bytes} bytes>"),
            Err(_) => "<kvmem.KvCache, closed>".to_owned(),
        }
    }
}

context_manager!(PyKvCache, PyKvCache::close);

impl Held for Pinned<Name> {
    const NAME: &'static str = "pinned value";
    const END: &'static str = "released";
}

impl Bytes for Pinned<Name> {
    fn span(&self) -> Span {
        Span::read_only(self.bytes())
    }
}

/// A value of a cache that is not evicted while this exists. Its bytes are read-only.
#[pyclass(name = "Pinned", module = "kvmem", frozen, weakref)]
pub(crate) struct PyPinned {
    held: Holder<Pinned<Name>>,
}

memory_methods!(PyPinned, Pinned<Name>);

impl Plain for Pinned<Name> {}

plain!(PyPinned { held });

impl PyPinned {
    #[inline]
    pub(crate) fn new(pinned: Pinned<Name>) -> PyPinned {
        PyPinned { held: Holder::new(pinned) }
    }
}

#[pymethods]
impl PyPinned {
    /// The key it was put in under.
    #[getter]
    fn cache_key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (&self.held.with(|pinned| pinned.key().clone())?).into_pyobject(py)
    }

    /// Where it begins in its pool, in bytes.
    #[getter]
    fn offset(&self) -> PyResult<u64> {
        self.held.with(|pinned| pinned.block().offset())
    }

    /// The key with which a device reaches all of it.
    fn key<'py>(&self, py: Python<'py>, device: &str) -> PyResult<Bound<'py, PyAny>> {
        key(py, self.held.with(|pinned| pinned.block().key(device))?)
    }

    /// The key of each device, by its name.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        keys(py, self.held.with(|pinned| pinned.block().keys())?)
    }

    /// It by plain data, for a process that has attached the pool.
    fn reference<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.held.with(|pinned| pinned.block().reference())?;
        crate::block::reference(py, found.map_err(|error| error::pool(py, &error))?)
    }

    /// Whether the key has been given another value since, or was removed. Being evicted does
    /// not count: see :class:`kvmem.spill.Spill`.
    #[getter]
    fn superseded(&self) -> PyResult<bool> {
        self.held.with(Pinned::is_superseded)
    }

    /// Lets go of it. Raises :class:`ExportedError` while there are views.
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

impl Held for Reservation<Name> {
    const NAME: &'static str = "reservation";
    const END: &'static str = "committed or discarded";
    // It has the cache, and that the pool.
    const SLOW: bool = true;
}

impl Bytes for Reservation<Name> {
    fn span(&self) -> Span {
        Span::writable(self.block().as_ptr().cast_mut(), self.block().len())
    }
}

/// Room for one value of a cache, to be written in place. A ``with`` commits it, or gives it
/// back if something is raised.
#[pyclass(name = "Reservation", module = "kvmem", frozen, weakref)]
pub(crate) struct PyReservation {
    held: Holder<Reservation<Name>>,
    /// To commit may evict, and the cache object has the lower tier.
    cache: Link<PyKvCache>,
}

impl Plain for Reservation<Name> {}

collected!(PyReservation { held, cache }, |it, py| it.cache.cut(py));

memory_methods!(PyReservation, Reservation<Name>);

#[pymethods]
impl PyReservation {
    /// The key it will be put in under.
    #[getter]
    fn cache_key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (&self.held.with(|room| room.key().clone())?).into_pyobject(py)
    }

    /// Where it begins in its pool, in bytes.
    #[getter]
    fn offset(&self) -> PyResult<u64> {
        self.held.with(|room| room.block().offset())
    }

    /// The key with which a device reaches all of it.
    fn key<'py>(&self, py: Python<'py>, device: &str) -> PyResult<Bound<'py, PyAny>> {
        key(py, self.held.with(|room| room.block().key(device))?)
    }

    /// Copies the bytes of another object in; returns how many.
    #[pyo3(signature = (source, start=Int::usual(0)), text_signature = "($self, source, start=0)")]
    fn write(&self, py: Python<'_>, source: &Bound<'_, PyAny>, start: Int<'_>) -> PyResult<usize> {
        write(py, &self.held, source, start)
    }

    /// Makes it the value of its key. Raises :class:`ExportedError` while there are views.
    ///
    /// Under a lease: unless that is broken; then the room is given back, and the answer is None.
    /// The lease ends. The value is in the cache also if this raises ``KeyboardInterrupt``, which
    /// comes from a lower tier that was given what is above the high watermark.
    #[pyo3(signature = (*, lease=None))]
    fn commit(&self, py: Python<'_>, lease: Option<&PyLease>) -> PyResult<Option<PyPinned>> {
        let Some(lease) = lease else {
            let room = self.held.take()?;
            return evicting(|| py.detach(|| room.commit())).map(PyPinned::new).map(Some);
        };
        let taken = lease.held.take()?;
        let room = match self.held.take() {
            Ok(room) if taken.covers(&room) => room,
            other => {
                lease.held.put_back(taken);
                self.held.put_back(other?);
                return Err(error::bad_value(
                    py,
                    "the lease is of another key, or of another cache",
                ));
            }
        };
        let committed = evicting(|| py.detach(|| room.commit_leased(taken).ok()))?;
        Ok(committed.map(PyPinned::new))
    }

    /// Gives the room back; what the key had is untouched.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        drop_value(py, Some(self.held.take()?));
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().held.with(|_| ())?;
        Ok(slf)
    }

    /// Commits it, or gives the room back if something was raised.
    #[pyo3(signature = (kind=None, *_exc))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _exc: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        match self.held.take_if_any()? {
            Some(room) if kind.is_none() => evicting(|| py.detach(|| drop(room.commit()))),
            room => {
                drop_value(py, room);
                Ok(())
            }
        }
    }

    fn __repr__(&self) -> String {
        match self.held.with(|room| (room.block().len(), room.block().offset())) {
            Ok((len, offset)) => format!("<kvmem.Reservation of {len} bytes at offset {offset}>"),
            Err(_) => "<kvmem.Reservation, ended>".to_owned(),
        }
    }
}

impl Held for Lease<Name> {
    const NAME: &'static str = "lease";
    const END: &'static str = "released, or committed under";
    // It has the cache, and that the pool.
    const SLOW: bool = true;
}

/// The right to put in what is fetched from a lower tier, if nothing is put or removed under
/// the key meanwhile: that breaks it.
#[pyclass(name = "Lease", module = "kvmem", frozen, weakref)]
pub(crate) struct PyLease {
    held: Holder<Lease<Name>>,
    cache: Link<PyKvCache>,
}

impl Plain for Lease<Name> {}

collected!(PyLease { held, cache }, |it, py| it.cache.cut(py));

#[pymethods]
impl PyLease {
    /// Whether something was put or removed, so that nothing can be committed under it.
    #[getter]
    fn broken(&self) -> PyResult<bool> {
        self.held.with(|lease| !lease.is_valid())
    }

    /// Gives it up.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        drop_value(py, Some(self.held.take()?));
        Ok(())
    }

    fn __repr__(&self) -> String {
        match self.held.with(Lease::is_valid) {
            Ok(true) => "<kvmem.Lease>".to_owned(),
            Ok(false) => "<kvmem.Lease, broken>".to_owned(),
            Err(_) => "<kvmem.Lease, ended>".to_owned(),
        }
    }
}

context_manager!(PyLease, |it, py| it.held.end(py));

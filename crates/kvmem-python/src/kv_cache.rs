//! *KvCache*: values by key, stored in blocks of a pool.
//!
//! The library calls the tier [below](crate::below) a cache, and holds no lock meanwhile.
//! Calls that may reach it release the GIL. Only [tiers in Python](crate::python_tier) take it
//! again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmem::cache::KvCache;
use kvmem::cache::{Eviction, Pinned, Reservation};
use kvmem::tier::WriteBehind;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::below::{self, Below, BuiltBelow, QueueSettings, lower_tier_error};
use crate::block::{key, keys, write};
use crate::buffer::{Bytes, Source, Span, memory_methods};
use crate::cache_key::{AsCacheKey, Cache, CacheKey, OwnedKey};
use crate::collect::{Link, Plain, collected, plain};
use crate::context::context_manager;
use crate::elements::{elements, named};
use crate::error;
use crate::fetching::{PyFetching, SIGNAL_INTERVAL};
use crate::holder::{Held, Holder, Lent, drop_value};
use crate::interrupt::evicting;
use crate::number::{Exactly, Int, Seconds};
use crate::options;
use crate::pool::PyPool;
use crate::python_tier::PythonTier;
use crate::report;
use crate::size::Size;

impl Held for Cache {
    const NAME: &'static str = "cache";
    const SLOW: bool = true;
}

/// A cache of values by key, stored in blocks of a pool. Any thread can look values up; values
/// are pinned while they are used, and evicted when space is needed.
///
/// Keys are ``int`` (127 bits and a sign), ``bytes`` or ``str``; keys of different types are never
/// equal. A cache is true in a boolean context, even if it is empty.
///
/// Options:
///
/// - ``pool``: pool that the blocks are allocated from. Other users may share it.
/// - ``max_bytes``: maximum number of bytes held. None: limited by the pool.
/// - ``max_blocks``: maximum number of values held. None means about 2**32.
/// - ``watermarks``: ``(low, high)`` in bytes. An insertion that leaves more than ``high`` bytes
///   evicts down to ``low``. None: an insertion evicts only to make space for its value.
/// - ``eviction``: ``lru`` or ``scan-resistant``.
/// - ``shards``: number of parts that the keys are divided into, rounded up to a power of two.
///   None means four per processor, at least 16, and fewer if ``max_blocks`` is small.
/// - ``lower_tier``: receives evicted values and is asked for missing ones: a :class:`DiskTier`,
///   a :class:`TierSet`, a :class:`kvmem.mooncake.ClusterTier`, a :class:`Chain`, or an object of
///   Python: see :mod:`kvmem.tier`.
/// - ``write_behind``: evicted values wait in a queue of as many bytes, where they are still found,
///   and a thread writes them to the lower tier, many at once. They stay in use in the pool
///   meanwhile. Closing the cache writes what is left. None: the thread that evicts a value writes
///   it.
/// - ``write_behind_when_full``: what happens when the queue is full: ``wait``, or ``drop`` the
///   value together with an older one of the lower tier.
/// - ``write_behind_writers``: number of threads that write the values of the queue.
/// - ``write_behind_on_drop``: what happens to the values in the queue at the end of the cache:
///   ``write``, or ``discard`` them together with older ones of the lower tier.
///
/// Raises :class:`InvalidArgumentError`.
#[pyclass(name = "KvCache", module = "kvmem", frozen, weakref)]
pub(crate) struct PyKvCache {
    held: Holder<Cache>,
    pool: Link<PyPool>,
    below: Below,
}

impl PyKvCache {
    fn cache(&self) -> PyResult<Lent<Cache>> {
        self.held.with(KvCache::clone).map(Lent::new)
    }

    /// Returns the number of values that tiers of Python did not store, but invalidated.
    fn dropped(&self) -> u64 {
        match &self.below {
            Below::Nothing => 0,
            Below::Tier { parts, .. } => parts.iter().map(|part| part.dropped()).sum(),
        }
    }

    /// Returns whether there is a lower tier.
    fn has_tier(&self) -> bool {
        matches!(self.below, Below::Tier { .. })
    }

    /// Returns the queue above the lower tier.
    fn queue(&self) -> PyResult<Option<Arc<WriteBehind>>> {
        // Fails if the cache has been closed.
        self.held.with(|_| ())?;
        match &self.below {
            Below::Tier { queue, .. } => Ok(queue.upgrade()),
            Below::Nothing => Ok(None),
        }
    }

    /// Returns the value under a key, from memory or else from the lower tier.
    fn get_from_tier(&self, py: Python<'_>, key: CacheKey<'_>) -> PyResult<Option<PyPinned>> {
        // One look-up is counted: the second half of this is a look-up, too.
        let here = self.held.with(|cache| {
            let key: &dyn AsCacheKey = &key;
            cache.contains(key).then(|| cache.get(key)).flatten()
        })?;
        if let Some(pinned) = here {
            return Ok(Some(PyPinned::new(pinned)));
        }
        let (cache, key) = (self.cache()?, [key.to_owned_key()]);
        let found = evicting(|| py.detach(|| cache.get_or_fetch(&key).pop().flatten()))?;
        Ok(found.map(PyPinned::new))
    }

    /// Returns the values of keys, as far as they are there at `deadline`.
    fn get_until(
        &self,
        py: Python<'_>,
        keys: &[OwnedKey],
        deadline: Instant,
    ) -> PyResult<Vec<Option<PyPinned>>> {
        let cache = self.cache()?;
        let fetching = evicting(|| py.detach(|| cache.start_fetch(keys)))?;
        let fetching = Lent::new(fetching);
        while !py.detach(|| fetching.wait_until(deadline.min(Instant::now() + SIGNAL_INTERVAL)))
            && Instant::now() < deadline
        {
            py.check_signals()?;
        }
        let values = py.detach(|| fetching.into_inner().into_values());
        Ok(values.into_iter().map(|value| value.map(PyPinned::new)).collect())
    }

    /// Reserves space for a value. Raises what the lower tier raises meanwhile.
    fn reservation(
        &self,
        py: Python<'_>,
        key: CacheKey<'_>,
        len: usize,
    ) -> PyResult<Reservation<OwnedKey>> {
        let name = key.to_owned_key();
        let reservation = match &self.below {
            // Without a tier this call runs no Python, and drops nothing that takes long.
            Below::Nothing => self.held.with(|cache| cache.reserve(name, len))?,
            Below::Tier { .. } => {
                let cache = self.cache()?;
                evicting(|| py.detach(|| cache.reserve(name, len)))?
            }
        };
        reservation.map_err(|error| error::cache(py, &error))
    }
}

impl Plain for Cache {}

collected!(PyKvCache { held, pool, below }, |it, py| {
    it.pool.cut(py);
    if let Below::Tier { object, parts, .. } = &it.below {
        object.cut(py);
        parts.iter().for_each(|part| part.object.cut(py));
    }
});

#[pymethods]
impl PyKvCache {
    #[new]
    #[pyo3(signature = (
        pool, *, max_bytes=None, max_blocks=None, watermarks=None, eviction="lru", shards=None,
        lower_tier=None, write_behind=None, write_behind_when_full="wait",
        write_behind_writers=Int::usual(1), write_behind_on_drop="write"
    ), text_signature = "(pool, *, max_bytes=None, max_blocks=None, watermarks=None, \
        eviction='lru', shards=None, lower_tier=None, write_behind=None, \
        write_behind_when_full='wait', write_behind_writers=1, write_behind_on_drop='write')")]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn create<'py>(
        pool: Bound<'py, PyPool>,
        max_bytes: Option<Size>,
        max_blocks: Option<Int<'py>>,
        watermarks: Option<Exactly<Size, 2>>,
        eviction: &str,
        shards: Option<Int<'py>>,
        lower_tier: Option<Bound<'py, PyAny>>,
        write_behind: Option<Size>,
        write_behind_when_full: &str,
        write_behind_writers: Int<'py>,
        write_behind_on_drop: &str,
    ) -> PyResult<PyKvCache> {
        let py = pool.py();
        let eviction = match eviction {
            "lru" => Eviction::Lru,
            "scan-resistant" => Eviction::ScanResistant,
            other => {
                let message = format!("eviction is {other:?}: give lru or scan-resistant");
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
        let settings = QueueSettings {
            bytes: write_behind,
            when_full: write_behind_when_full,
            writers: write_behind_writers,
            on_drop: write_behind_on_drop,
        };
        let BuiltBelow { below, tier } = below::build(&pool, &memory, lower_tier, settings)?;
        if let Some(tier) = tier {
            builder = builder.lower_tier(tier).with_allocator(kvmem_tier::allocate);
        }
        let cache = builder.build().map_err(|error| error::cache_setup(py, &error))?;
        Ok(PyKvCache { held: Holder::new(cache), pool: Link::new(Some(pool.unbind())), below })
    }

    /// Copies a value into a block and stores it under ``key``. Evicts until the value fits.
    ///
    /// ``depth`` is the number of blocks of the prefix that come before the value. Blocks at the
    /// end of a prefix are evicted before those at its start, in whatever order they are inserted
    /// and looked up.
    ///
    /// Raises :class:`OutOfSpaceError` if the value cannot fit. Passes on what a lower tier raises
    /// that is no ``Exception``, such as ``KeyboardInterrupt``. The value is not stored then,
    /// unless the tier was called to evict down to the low watermark, which follows the insertion.
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
        let source = Source::of(value).map_err(|error| named(py, error, "value"))?;
        let mut reservation = self.reservation(py, key, source.len())?;
        reservation.set_depth(depth);
        // SAFETY: `copy_to` requires room for the source at the target: the reserved block has
        // `source.len()` bytes, mapped while `reservation` lives. Only this thread knows the block
        // before the commit, so no other access overlaps.
        unsafe { source.copy_to(py, reservation.block().as_ptr().cast_mut()) };
        if self.has_tier() {
            return evicting(|| py.detach(|| drop(reservation.commit())));
        }
        evicting(|| drop(reservation.commit()))
    }

    /// Reserves space for a value of ``nbytes`` bytes, to be written in place and then
    /// committed. Evicts until the value fits. ``depth`` is as for :meth:`insert`.
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
        let mut reservation = slf.get().reservation(slf.py(), key, nbytes.bytes())?;
        reservation.set_depth(depth);
        Ok(PyReservation {
            held: Holder::new(reservation),
            cache: Link::new(Some(slf.clone().unbind())),
        })
    }

    /// Returns the value under ``key``, pinned, and counts it as used. With a lower tier, a
    /// value that the cache does not have is fetched from there.
    fn get(&self, py: Python<'_>, key: CacheKey<'_>) -> PyResult<Option<PyPinned>> {
        if self.has_tier() {
            return self.get_from_tier(py, key);
        }
        let found = self.held.with(|cache| cache.get(&key as &dyn AsCacheKey))?;
        Ok(found.map(PyPinned::new))
    }

    /// Returns the values of keys, pinned, in the same order; None where neither the cache nor
    /// its lower tier has a value. A :class:`DiskTier` reads all missing values at once, which is
    /// much faster than one :meth:`get` after the other.
    ///
    /// After ``timeout`` seconds it returns the values that are there. Reads that have begun end in
    /// the background, and their values are in the cache afterwards; the others are cancelled.
    ///
    /// A value that was stored or removed meanwhile is never replaced by an older one of the tier.
    ///
    /// >>> import os, tempfile
    /// >>> path = os.path.join(tempfile.mkdtemp(), "tier")
    /// >>> with (
    /// ...     kvmem.Pool("1MiB", pages="4k") as pool,
    /// ...     kvmem.DiskTier(path, bytes="16MiB") as tier,
    /// ...     kvmem.KvCache(pool, lower_tier=tier) as cache,
    /// ... ):
    /// ...     for key in range(100):  # more than fits into memory
    /// ...         cache.insert(key, bytes([key]) * 30_000)
    /// ...     sum(bytes(found)[0] for found in cache.get_or_fetch([0, 1, 99]))
    /// 100
    #[pyo3(signature = (keys, *, timeout=None))]
    fn get_or_fetch<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        timeout: Option<Seconds<'py>>,
    ) -> PyResult<Vec<Option<PyPinned>>> {
        let deadline = options::seconds(py, "timeout", timeout)?
            .map(|timeout| Instant::now().checked_add(timeout).unwrap_or_else(far));
        let keys = owned_keys(keys)?;
        if let (Some(deadline), true) = (deadline, self.has_tier()) {
            return self.get_until(py, &keys, deadline);
        }
        let cache = self.cache()?;
        let found = evicting(|| py.detach(|| cache.get_or_fetch(&keys)))?;
        Ok(found.into_iter().map(|found| found.map(PyPinned::new)).collect())
    }

    /// Begins to fetch from the lower tier what the cache lacks of ``keys``, and returns at
    /// once. A thread of the cache reads. Other calls for the same keys share the reads.
    ///
    /// >>> import asyncio, os, tempfile
    /// >>> path = os.path.join(tempfile.mkdtemp(), "tier")
    /// >>> async def total(cache):
    /// ...     fetching = cache.start_fetch(range(10))
    /// ...     ...  # the rest of the request is prepared
    /// ...     return sum(len(found) for found in await fetching)
    /// >>> with (
    /// ...     kvmem.Pool("1MiB", pages="4k") as pool,
    /// ...     kvmem.DiskTier(path, bytes="16MiB") as tier,
    /// ...     kvmem.KvCache(pool, lower_tier=tier) as cache,
    /// ... ):
    /// ...     for key in range(100):
    /// ...         cache.insert(key, bytes([key]) * 30_000)
    /// ...     asyncio.run(total(cache))
    /// 300000
    fn start_fetch<'py>(slf: &Bound<'py, Self>, keys: &Bound<'py, PyAny>) -> PyResult<PyFetching> {
        let (this, py) = (slf.get(), slf.py());
        let (keys, cache) = (owned_keys(keys)?, this.cache()?);
        let fetching = evicting(|| py.detach(|| cache.start_fetch(&keys)))?;
        Ok(PyFetching::new(slf, fetching))
    }

    /// Starts to fetch into the processor's caches what :meth:`get` and :meth:`reserve` of these
    /// keys read first. The cache misses of calls that follow for these keys then overlap. A hint:
    /// changes nothing, counts no use, and asks no lower tier.
    fn prefetch(&self, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let objects = elements(keys, "keys", "keys")?.collect::<PyResult<Vec<_>>>()?;
        let keys = objects
            .iter()
            .map(|key| key.extract::<CacheKey<'_>>())
            .collect::<PyResult<Vec<_>>>()?;
        self.held.with(|cache| cache.prefetch(keys.iter().map(|key| key as &dyn AsCacheKey)))
    }

    /// Removes the value under ``key``, from the lower tier as well, and returns it.
    fn remove(&self, py: Python<'_>, key: CacheKey<'_>) -> PyResult<Option<PyPinned>> {
        if self.has_tier() {
            let (cache, key) = (self.cache()?, key.to_owned_key());
            let removed = evicting(|| py.detach(|| cache.remove_everywhere(&key)))?;
            return match removed {
                Ok(found) => Ok(found.map(PyPinned::new)),
                Err(error) => Err(lower_tier_error(py, &error)),
            };
        }
        let found = self.held.with(|cache| cache.remove(&key as &dyn AsCacheKey))?;
        Ok(found.map(PyPinned::new))
    }

    /// Does what :meth:`remove` does. It has the name of the function that does so in Rust and
    /// C, where removing from the cache alone is another one.
    fn remove_everywhere(&self, py: Python<'_>, key: CacheKey<'_>) -> PyResult<Option<PyPinned>> {
        self.remove(py, key)
    }

    fn __contains__(&self, key: CacheKey<'_>) -> PyResult<bool> {
        self.held.with(|cache| cache.contains(&key as &dyn AsCacheKey))
    }

    fn __len__(&self) -> PyResult<usize> {
        self.held.with(|cache| cache.len() as usize)
    }

    /// A cache is true even if it is empty, so `cache or default` is the cache.
    fn __bool__(&self) -> bool {
        true
    }

    /// Removes all values, from the lower tier as well. Pinned values stay valid.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.cache()?;
        if self.has_tier() {
            let cleared = evicting(|| py.detach(|| cache.clear_everywhere()))?;
            return cleared.map_err(|error| lower_tier_error(py, &error));
        }
        py.detach(|| cache.clear());
        Ok(())
    }

    /// Does what :meth:`clear` does, by the name that it has in Rust and C.
    fn clear_everywhere(&self, py: Python<'_>) -> PyResult<()> {
        self.clear(py)
    }

    /// Evicts until at most ``nbytes`` bytes are held, or nothing is left that can be evicted.
    /// With a :class:`DiskTier`, ``evict_to(0)`` before the end of a process writes all values to
    /// the disk, where the next process finds them.
    ///
    /// Returns the number of bytes held. Raises what the lower tier raises that is no
    /// ``Exception``, such as ``KeyboardInterrupt``. Further values are then dropped, and not
    /// given to the tier.
    fn evict_to(&self, py: Python<'_>, nbytes: Size) -> PyResult<u64> {
        let cache = self.cache()?;
        evicting(|| py.detach(|| cache.evict_to(nbytes.0)))
    }

    /// Waits until every value that the cache evicted before has been given to the lower tier.
    /// Returns False after ``timeout`` seconds. Without ``write_behind`` there is nothing to wait
    /// for.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<Seconds<'_>>) -> PyResult<bool> {
        let timeout = options::seconds(py, "timeout", timeout)?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let Some(queue) = self.queue()? else { return Ok(true) };
        let flushed = loop {
            let turn = Instant::now() + SIGNAL_INTERVAL;
            let turn = deadline.map_or(turn, |deadline| deadline.min(turn));
            if py.detach(|| queue.flush_until(turn)) {
                break Ok(true);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break Ok(false);
            }
            if let Err(error) = py.check_signals() {
                break Err(error);
            }
        };
        // It may be the last reference to the queue, which is written then.
        py.detach(|| drop(queue));
        flushed
    }

    /// Returns the figures of the queue above the lower tier; zeros without one.
    fn write_behind_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue()?;
        let (stats, last_error) = py.detach(|| {
            let stats = queue.as_ref().map(|queue| queue.stats()).unwrap_or_default();
            let last_error = queue.as_ref().and_then(|queue| queue.last_error());
            drop(queue);
            (stats, last_error)
        });
        let others = PyDict::new(py);
        others.set_item("last_error", last_error)?;
        report::statistics(py, "WriteBehindStats", &stats, &others)
    }

    /// Number of bytes held, values being written included.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.held.with(KvCache::bytes)
    }

    /// Pool that the blocks are allocated from.
    #[getter]
    fn pool(&self, py: Python<'_>) -> PyResult<Py<PyPool>> {
        self.pool.get(py).ok_or_else(|| error::closed(Cache::NAME, Cache::END))
    }

    /// Lower tier of the cache.
    #[getter]
    fn lower_tier<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        match &self.below {
            Below::Tier { object, .. } => object.get(py).map(|tier| tier.into_bound(py)),
            Below::Nothing => None,
        }
    }

    /// Returns the figures of the cache.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut stats = self.held.with(KvCache::stats)?;
        stats.sink_failures += self.dropped();
        report::statistics(py, "KvCacheStats", &stats, &PyDict::new(py))
    }

    /// Gives up the cache and all values that it holds, and closes its lower tier, unless that
    /// is a :class:`DiskTier`. Pinned values stay valid.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.held.end(py)?;
        if let Below::Tier { parts, queue, writes_at_end, .. } = &self.below {
            // A fetch, a lease or another call may have the library's cache still, and its queue.
            if let Some(queue) = queue.upgrade() {
                py.detach(|| {
                    if *writes_at_end {
                        queue.flush();
                    }
                    drop(queue);
                });
            }
            let close = |part: &Arc<PythonTier>| match part.object.get(py) {
                Some(tier) => tier.call_method0(py, "close").map(drop),
                None => Ok(()),
            };
            // Each is told, whether or not another one raises.
            let closed: Vec<PyResult<()>> = parts.iter().map(close).collect();
            return closed.into_iter().collect();
        }
        Ok(())
    }

    /// Whether the cache has been closed.
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

/// Returns the keys of an iterable.
fn owned_keys(keys: &Bound<'_, PyAny>) -> PyResult<Vec<OwnedKey>> {
    let owned =
        |key: PyResult<Bound<'_, PyAny>>| Ok(key?.extract::<CacheKey<'_>>()?.to_owned_key());
    elements(keys, "keys", "keys")?.map(owned).collect()
}

/// Returns a time that no program reaches.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(100 * 365 * 86_400)
}

impl Held for kvmem::cache::Fetching<OwnedKey> {
    const NAME: &'static str = "fetch";
    // It refers to the cache.
    const SLOW: bool = true;
}

impl Held for Pinned<OwnedKey> {
    const NAME: &'static str = "pinned value";
    const END: &'static str = "released";
}

impl Bytes for Pinned<OwnedKey> {
    fn span(&self) -> Span {
        Span::read_only(self.bytes())
    }
}

/// A value of a cache. It is not evicted while this object exists. Its bytes are read-only.
///
/// ``release`` raises :class:`ExportedError` while views exist, such as tensors of :func:`tensor`
/// with ``read_only=True``. A tensor of ``torch.frombuffer`` is no view: after ``release`` it may
/// read the bytes of another value.
#[pyclass(name = "Pinned", module = "kvmem", frozen, weakref)]
pub(crate) struct PyPinned {
    held: Holder<Pinned<OwnedKey>>,
}

memory_methods!(PyPinned, Pinned<OwnedKey>);

impl Plain for Pinned<OwnedKey> {}

plain!(PyPinned { held });

impl PyPinned {
    #[inline]
    pub(crate) fn new(pinned: Pinned<OwnedKey>) -> PyPinned {
        PyPinned { held: Holder::new(pinned) }
    }
}

#[pymethods]
impl PyPinned {
    /// Key that the value was stored under.
    #[getter]
    fn cache_key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (&self.held.with(|pinned| pinned.key().clone())?).into_pyobject(py)
    }

    /// Offset of the value in its pool, in bytes.
    #[getter]
    fn offset(&self) -> PyResult<u64> {
        self.held.with(|pinned| pinned.block().offset())
    }

    /// Returns the key with which a device reaches the whole value.
    fn key<'py>(&self, py: Python<'py>, device: &str) -> PyResult<Bound<'py, PyAny>> {
        key(py, self.held.with(|pinned| pinned.block().key(device))?)
    }

    /// Returns the key of each device, by the device's name.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        keys(py, self.held.with(|pinned| pinned.block().keys())?)
    }

    /// Returns the value's position as plain data, for a process that has attached the pool.
    fn reference<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.held.with(|pinned| pinned.block().reference())?;
        crate::block::reference(py, found.map_err(|error| error::pool(py, &error))?)
    }

    /// Whether the cache key has received another value since, or was removed. An eviction does
    /// not count: see :mod:`kvmem.tier`.
    #[getter]
    fn superseded(&self) -> PyResult<bool> {
        self.held.with(Pinned::is_superseded)
    }

    /// Releases the pin. Raises :class:`ExportedError` while views exist.
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

impl Held for Reservation<OwnedKey> {
    const NAME: &'static str = "reservation";
    const END: &'static str = "committed or discarded";
    // It refers to the cache, which refers to the pool.
    const SLOW: bool = true;
}

impl Bytes for Reservation<OwnedKey> {
    fn span(&self) -> Span {
        Span::writable(self.block().as_ptr().cast_mut(), self.block().len())
    }
}

/// Space for one value of a cache, to be written in place. Leaving the ``with`` block commits
/// the value, or discards it after an exception.
///
/// Both raise :class:`ExportedError` while views exist, such as tensors of :func:`tensor`. A tensor
/// of ``torch.frombuffer`` is no view: it can write to the bytes of another value afterwards.
#[pyclass(name = "Reservation", module = "kvmem", frozen, weakref)]
pub(crate) struct PyReservation {
    held: Holder<Reservation<OwnedKey>>,
    /// Committing may evict, and the cache object has the lower tier.
    cache: Link<PyKvCache>,
}

impl Plain for Reservation<OwnedKey> {}

collected!(PyReservation { held, cache }, |it, py| it.cache.cut(py));

memory_methods!(PyReservation, Reservation<OwnedKey>);

#[pymethods]
impl PyReservation {
    /// Key that the value will be stored under.
    #[getter]
    fn cache_key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (&self.held.with(|reservation| reservation.key().clone())?).into_pyobject(py)
    }

    /// Offset of the value in its pool, in bytes.
    #[getter]
    fn offset(&self) -> PyResult<u64> {
        self.held.with(|reservation| reservation.block().offset())
    }

    /// Returns the key with which a device reaches the whole value.
    fn key<'py>(&self, py: Python<'py>, device: &str) -> PyResult<Bound<'py, PyAny>> {
        key(py, self.held.with(|reservation| reservation.block().key(device))?)
    }

    /// Copies the bytes of ``source`` into the value from ``start`` on. Returns their number.
    #[pyo3(signature = (source, start=Int::usual(0)), text_signature = "($self, source, start=0)")]
    fn write(&self, py: Python<'_>, source: &Bound<'_, PyAny>, start: Int<'_>) -> PyResult<usize> {
        write(py, &self.held, source, start)
    }

    /// Stores the value under its key and returns it pinned. Raises :class:`ExportedError` while
    /// views exist.
    ///
    /// ``KeyboardInterrupt`` may come from a lower tier that receives the values above the high
    /// watermark; the value is in the cache then, too.
    fn commit(&self, py: Python<'_>) -> PyResult<PyPinned> {
        let reservation = self.held.take()?;
        evicting(|| py.detach(|| reservation.commit())).map(PyPinned::new)
    }

    /// Frees the space. The value that the key has, if any, does not change.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        drop_value(py, Some(self.held.take()?));
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().held.with(|_| ())?;
        Ok(slf)
    }

    /// Commits the value, or discards it after an exception.
    #[pyo3(signature = (kind=None, *_exc))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _exc: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        match self.held.take_if_any()? {
            Some(reservation) if kind.is_none() => {
                evicting(|| py.detach(|| drop(reservation.commit())))
            }
            reservation => {
                drop_value(py, reservation);
                Ok(())
            }
        }
    }

    fn __repr__(&self) -> String {
        match self
            .held
            .with(|reservation| (reservation.block().len(), reservation.block().offset()))
        {
            Ok((len, offset)) => format!("<kvmem.Reservation of {len} bytes at offset {offset}>"),
            Err(_) => "<kvmem.Reservation, ended>".to_owned(),
        }
    }
}

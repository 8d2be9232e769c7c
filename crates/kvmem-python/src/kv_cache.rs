//! *KvCache*: values by key, stored in blocks of a pool.
//!
//! The library calls the tier [below](crate::below) a cache, and holds no lock meanwhile.
//! Calls that may reach it release the GIL. Only [tiers in Python](crate::python_tier) take it
//! again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmem::cache::KvCache;
use kvmem::cache::{Eviction, Reservation};
use kvmem::tier::{TierHints, WriteBehind};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::below::{self, Below, BuiltBelow, QueueSettings};
use crate::block::{key, write};
use crate::buffer::{Bytes, Source, Span};
use crate::cache_key::{AsCacheKey, Cache, CacheKey, OwnedKey};
use crate::collect::{Link, Plain, collected};
use crate::context::context_manager;
use crate::data_type::ElementType;
use crate::elements::{at_key, each_key, elements, items, named};
use crate::error;
use crate::holder::{Held, Holder, Lent, drop_value};
use crate::interrupt::{SIGNAL_INTERVAL, evicting};
use crate::keywords::Keywords;
use crate::memory_methods::memory_methods;
use crate::node_values::worth;
use crate::number::{Int, Seconds};
use crate::options;
use crate::pinned::PyPinned;
use crate::pool::PyPool;
use crate::python_tier::{PythonTier, lower_tier_error};
use crate::report;
use crate::size::Size;

impl Held for Cache {
    const NAME: &'static str = "cache";
    const SLOW: bool = true;
}

#[doc = doc!("KvCache")]
#[pyclass(name = "KvCache", module = "kvmem", frozen, weakref)]
pub(crate) struct PyKvCache {
    held: Holder<Cache>,
    pool: Link<PyPool>,
    below: Below,
}

impl PyKvCache {
    pub(crate) fn cache(&self) -> PyResult<Lent<Cache>> {
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

    /// Reserves space for a value and copies it there.
    fn filled(
        &self,
        py: Python<'_>,
        key: CacheKey<'_>,
        source: &Source<'_>,
        hints: TierHints,
    ) -> PyResult<Reservation<OwnedKey>> {
        let mut reservation = self.reservation(py, key, source.len())?;
        reservation.set_hints(hints);
        // SAFETY: `copy_to` requires room for the source at the target: the reserved block has
        // `source.len()` bytes, mapped while `reservation` lives. Only this thread knows the block
        // before the commit, so no other access overlaps.
        unsafe { source.copy_to(py, reservation.block().as_ptr().cast_mut()) };
        Ok(reservation)
    }
}

/// Converts hints about a value.
fn hints<'py>(
    py: Python<'py>,
    depth: Int<'py>,
    priority: Int<'py>,
    ttl: Option<Seconds<'py>>,
    ElementType(data_type): ElementType,
) -> PyResult<TierHints> {
    let (priority, ttl) = worth(py, priority, ttl)?;
    Ok(TierHints { priority, ttl, depth: depth.u32(py, "depth")?, data_type })
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
    #[pyo3(signature = (pool, **options), text_signature = "(pool, *, max_bytes=None, \
        max_blocks=None, eviction='lru', lower_tier=None, write_behind=None, \
        write_behind_when_full='wait', write_behind_writers=1, write_behind_on_drop='write')")]
    fn create<'py>(
        pool: Bound<'py, PyPool>,
        options: Option<Bound<'py, PyDict>>,
    ) -> PyResult<PyKvCache> {
        let py = pool.py();
        let options = Keywords::new(py, "KvCache", options);
        let evictions = [("lru", Eviction::Lru), ("scan-resistant", Eviction::ScanResistant)];
        let eviction = options.choice("eviction", evictions)?;
        let memory = pool.get().pool()?;
        let mut builder = KvCache::builder(&memory).eviction(eviction);
        if let Some(bytes) = options.bytes("max_bytes")? {
            builder = builder.max_bytes(bytes);
        }
        if let Some(blocks) = options.number("max_blocks", 0, u64::MAX)? {
            builder = builder.max_blocks(blocks);
        }
        let lower_tier = options.object("lower_tier")?.filter(|tier| !tier.is_none());
        let settings = QueueSettings::take(&options)?;
        options.end()?;
        let BuiltBelow { below, tier } = below::build(&pool, &memory, lower_tier, &settings)?;
        if let Some(tier) = tier {
            builder = builder.lower_tier(tier).with_allocator(kvmem_tier::allocate);
        }
        let cache = builder.build().map_err(|error| error::cache_setup(py, &error))?;
        Ok(PyKvCache { held: Holder::new(cache), pool: Link::new(Some(pool.unbind())), below })
    }

    #[doc = doc!("KvCache.insert")]
    #[pyo3(
        signature = (
            key, value, *, depth=Int::usual(0), priority=Int::usual(0), ttl=None,
            data_type=ElementType::default()
        ),
        text_signature = "($self, key, value, *, depth=0, priority=0, ttl=None, \
            data_type='unknown')"
    )]
    fn insert(
        &self,
        key: CacheKey<'_>,
        value: &Bound<'_, PyAny>,
        depth: Int<'_>,
        priority: Int<'_>,
        ttl: Option<Seconds<'_>>,
        data_type: ElementType,
    ) -> PyResult<()> {
        let py = value.py();
        let hints = hints(py, depth, priority, ttl, data_type)?;
        let source = Source::of(value).map_err(|error| named(py, error, "value"))?;
        let reservation = self.filled(py, key, &source, hints)?;
        if self.has_tier() {
            py.detach(|| drop(reservation.commit()));
            return Ok(());
        }
        drop(reservation.commit());
        Ok(())
    }

    #[doc = doc!("KvCache.insert_batch")]
    #[pyo3(
        signature = (
            values, *, depths=None, priority=Int::usual(0), ttl=None,
            data_type=ElementType::default()
        ),
        text_signature = "($self, values, *, depths=None, priority=0, ttl=None, \
            data_type='unknown')"
    )]
    fn insert_batch(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        depths: Option<&Bound<'_, PyAny>>,
        priority: Int<'_>,
        ttl: Option<Seconds<'_>>,
        data_type: ElementType,
    ) -> PyResult<()> {
        let items = items(values, "values", "bytes")?;
        let all = hints(py, Int::usual(0), priority, ttl, data_type)?;
        let mut each = vec![all; items.len()];
        if let Some(depths) = depths {
            let depths = elements(depths, "depths", "numbers")?
                .map(|depth| {
                    let depth = depth?.extract::<Int<'_>>();
                    depth.map_err(|error| named(py, error, "depths"))?.u32(py, "depths")
                })
                .collect::<PyResult<Vec<u32>>>()?;
            if depths.len() != items.len() {
                let (given, count) = (depths.len(), items.len());
                let message = format!("{given} depths for {count} values: give one for each");
                return Err(error::bad_number(py, message, given, count));
            }
            each.iter_mut().zip(depths).for_each(|(hints, depth)| hints.depth = depth);
        }
        let mut reservations = Vec::with_capacity(items.len());
        for ((key, value), hints) in items.iter().zip(each) {
            let source = Source::of(value).map_err(|error| at_key(error, "values", key))?;
            let key = key.extract().map_err(|error| named(py, error, "a key of values"))?;
            reservations.push(self.filled(py, key, &source, hints)?);
        }
        py.detach(|| reservations.into_iter().for_each(|it| drop(it.commit())));
        Ok(())
    }

    #[doc = doc!("KvCache.reserve")]
    #[pyo3(
        signature = (
            key, nbytes, *, depth=Int::usual(0), priority=Int::usual(0), ttl=None,
            data_type=ElementType::default()
        ),
        text_signature = "($self, key, nbytes, *, depth=0, priority=0, ttl=None, \
            data_type='unknown')"
    )]
    fn reserve(
        slf: &Bound<'_, Self>,
        key: CacheKey<'_>,
        nbytes: Size,
        depth: Int<'_>,
        priority: Int<'_>,
        ttl: Option<Seconds<'_>>,
        data_type: ElementType,
    ) -> PyResult<PyReservation> {
        let hints = hints(slf.py(), depth, priority, ttl, data_type)?;
        let mut reservation = slf.get().reservation(slf.py(), key, nbytes.bytes())?;
        reservation.set_hints(hints);
        Ok(PyReservation {
            held: Holder::new(reservation),
            cache: Link::new(Some(slf.clone().unbind())),
        })
    }

    #[doc = doc!("KvCache.get")]
    fn get(&self, py: Python<'_>, key: CacheKey<'_>) -> PyResult<Option<PyPinned>> {
        let in_memory = self.held.with(|cache| {
            let key: &dyn AsCacheKey = &key;
            // One look-up is counted: that of the fetch is the second one.
            let looks = !self.has_tier() || cache.contains_in_memory(key);
            looks.then(|| cache.get_in_memory(key)).flatten()
        })?;
        if in_memory.is_some() || !self.has_tier() {
            return Ok(in_memory.map(PyPinned::new));
        }
        let cache = self.cache()?;
        let found = evicting(|| py.detach(|| cache.get(&key as &dyn AsCacheKey)))?;
        Ok(found.map(PyPinned::new))
    }

    #[doc = doc!("KvCache.get_in_memory")]
    fn get_in_memory(&self, key: CacheKey<'_>) -> PyResult<Option<PyPinned>> {
        let found = self.held.with(|cache| cache.get_in_memory(&key as &dyn AsCacheKey))?;
        Ok(found.map(PyPinned::new))
    }

    #[doc = doc!("KvCache.get_batch")]
    #[pyo3(signature = (keys, *, timeout=None))]
    fn get_batch<'py>(
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
        let found = evicting(|| py.detach(|| cache.get_batch(&keys)))?;
        Ok(found.into_iter().map(|found| found.map(PyPinned::new)).collect())
    }

    #[doc = doc!("KvCache.prefetch")]
    fn prefetch(&self, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = keys.py();
        let objects = elements(keys, "keys", "keys")?.collect::<PyResult<Vec<_>>>()?;
        let mut keys = Vec::with_capacity(objects.len());
        for (at, key) in objects.iter().enumerate() {
            let placed = |error| named(py, error, &format!("keys[{at}]"));
            keys.push(key.extract::<CacheKey<'_>>().map_err(placed)?);
        }
        self.held.with(|cache| cache.prefetch(keys.iter().map(|key| key as &dyn AsCacheKey)))
    }

    #[doc = doc!("KvCache.remove")]
    fn remove(&self, py: Python<'_>, key: CacheKey<'_>) -> PyResult<Option<PyPinned>> {
        if !self.has_tier() {
            return self.remove_in_memory(key);
        }
        let cache = self.cache()?;
        let removed = evicting(|| py.detach(|| cache.remove(&key as &dyn AsCacheKey)))?;
        let found = removed.map_err(|error| lower_tier_error(py, error.tier_error()))?;
        Ok(found.map(PyPinned::new))
    }

    #[doc = doc!("KvCache.remove_in_memory")]
    fn remove_in_memory(&self, key: CacheKey<'_>) -> PyResult<Option<PyPinned>> {
        let found = self.held.with(|cache| cache.remove_in_memory(&key as &dyn AsCacheKey))?;
        Ok(found.map(PyPinned::new))
    }

    fn __contains__(&self, py: Python<'_>, key: CacheKey<'_>) -> PyResult<bool> {
        let in_memory = self.contains_in_memory(key)?;
        if in_memory || !self.has_tier() {
            return Ok(in_memory);
        }
        let cache = self.cache()?;
        evicting(|| py.detach(|| cache.contains(&key as &dyn AsCacheKey)))
    }

    #[doc = doc!("KvCache.contains_in_memory")]
    fn contains_in_memory(&self, key: CacheKey<'_>) -> PyResult<bool> {
        self.held.with(|cache| cache.contains_in_memory(&key as &dyn AsCacheKey))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        if !self.has_tier() {
            return self.len_in_memory();
        }
        let cache = self.cache()?;
        evicting(|| py.detach(|| cache.len() as usize))
    }

    #[doc = doc!("KvCache.len_in_memory")]
    fn len_in_memory(&self) -> PyResult<usize> {
        self.held.with(|cache| cache.len_in_memory() as usize)
    }

    /// A cache is true even if it is empty, so `cache or default` is the cache.
    fn __bool__(&self) -> bool {
        true
    }

    #[doc = doc!("KvCache.clear")]
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.cache()?;
        let cleared = evicting(|| py.detach(|| cache.clear()))?;
        cleared.map_err(|error| lower_tier_error(py, error.tier_error()))
    }

    #[doc = doc!("KvCache.clear_in_memory")]
    fn clear_in_memory(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.cache()?;
        py.detach(|| cache.clear_in_memory());
        Ok(())
    }

    #[doc = doc!("KvCache.evict_to")]
    fn evict_to(&self, py: Python<'_>, nbytes: Size) -> PyResult<u64> {
        let cache = self.cache()?;
        evicting(|| py.detach(|| cache.evict_to(nbytes.0)))
    }

    #[doc = doc!("KvCache.flush")]
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

    #[doc = doc!("KvCache.write_behind_stats")]
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

    #[doc = doc!("KvCache.nbytes")]
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.held.with(KvCache::bytes)
    }

    #[doc = doc!("KvCache.pool")]
    #[getter]
    fn pool(&self, py: Python<'_>) -> PyResult<Py<PyPool>> {
        self.pool.get(py).ok_or_else(|| error::closed(Cache::NAME, Cache::END))
    }

    #[doc = doc!("KvCache.lower_tier")]
    #[getter]
    fn lower_tier<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        match &self.below {
            Below::Tier { object, .. } => object.get(py).map(|tier| tier.into_bound(py)),
            Below::Nothing => None,
        }
    }

    #[doc = doc!("KvCache.stats")]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut stats = self.held.with(KvCache::stats)?;
        stats.sink_failures += self.dropped();
        report::statistics(py, "KvCacheStats", &stats, &PyDict::new(py))
    }

    #[doc = doc!("KvCache.close")]
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.held.end(py)?;
        if let Below::Tier { parts, queue, writes_at_end, .. } = &self.below {
            // A fetch or another call may have the library's cache still, and its queue.
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

    #[doc = doc!("KvCache.closed")]
    #[getter]
    fn closed(&self) -> bool {
        self.held.is_gone()
    }

    fn __repr__(&self) -> String {
        match self.held.with(|cache| (cache.len_in_memory(), cache.bytes())) {
            Ok((blocks, bytes)) => format!("<kvmem.KvCache of {blocks} blocks, {bytes} bytes>"),
            Err(_) => "<kvmem.KvCache, closed>".to_owned(),
        }
    }
}

context_manager!(PyKvCache, PyKvCache::close);

/// Returns the keys of an iterable.
pub(crate) fn owned_keys(keys: &Bound<'_, PyAny>) -> PyResult<Vec<OwnedKey>> {
    each_key(keys, "keys", |key| Ok(key.to_owned_key()))
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

#[doc = doc!("Reservation")]
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
    #[doc = doc!("Reservation.cache_key")]
    #[getter]
    fn cache_key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (&self.held.with(|reservation| reservation.key().clone())?).into_pyobject(py)
    }

    #[doc = doc!("Reservation.offset")]
    #[getter]
    fn offset(&self) -> PyResult<u64> {
        self.held.with(|reservation| reservation.block().offset())
    }

    #[doc = doc!("Reservation.key")]
    fn key<'py>(&self, py: Python<'py>, device: &str) -> PyResult<Bound<'py, PyAny>> {
        key(py, self.held.with(|reservation| reservation.block().key(device))?)
    }

    #[doc = doc!("Reservation.write")]
    #[pyo3(signature = (source, start=Int::usual(0)), text_signature = "($self, source, start=0)")]
    fn write(&self, py: Python<'_>, source: &Bound<'_, PyAny>, start: Int<'_>) -> PyResult<usize> {
        write(py, &self.held, source, start)
    }

    #[doc = doc!("Reservation.commit")]
    fn commit(&self, py: Python<'_>) -> PyResult<PyPinned> {
        let reservation = self.held.take()?;
        Ok(PyPinned::new(py.detach(|| reservation.commit())))
    }

    #[doc = doc!("Reservation.discard")]
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
                py.detach(|| drop(reservation.commit()));
                Ok(())
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

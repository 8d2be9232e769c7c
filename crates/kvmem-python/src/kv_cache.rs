//! *KvCache*: values under keys, in blocks of a pool.
//!
//! With a *spill*, a lower tier, what is evicted is not lost. It is a Python object with four methods: `evicted(pinned)` is given each value
//! that leaves the cache for room, `fetch(cache, key)` is asked for what the cache does not have, `forget(key)` and `forget_all()` are told what
//! was taken out, and `close()` ends it. They are called with no lock held: neither the cache's nor a holder's. Until `evicted`, `forget` and
//! `forget_all` have returned, the cache gives no lease on the keys concerned.

use kvmem::pool::KvCache;
use kvmem::pool::kv_cache::{Eviction, Lease, Leased, Pinned, Reservation};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt, PyString, PyTuple};

use crate::block::{key, keys, write};
use crate::buffer::{Bytes, Source, Span, memory_methods};
use crate::context::context_manager;
use crate::error;
use crate::holder::{Held, Holder, Lent, drop_value};
use crate::pool::PyPool;
use crate::process;
use crate::report;
use crate::size::Size;

/// A key: a number, such as a hash, or bytes or a text, such as a longer hash.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    Int(i128),
    Bytes(Box<[u8]>),
    Text(Box<str>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Name {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Name> {
        if let Ok(number) = given.extract::<i64>() {
            Ok(Name::Int(i128::from(number)))
        } else if let Ok(bytes) = given.cast::<PyBytes>() {
            Ok(Name::Bytes(bytes.as_bytes().into()))
        } else if let Ok(text) = given.cast::<PyString>() {
            Ok(Name::Text(text.to_str()?.into()))
        } else if let Ok(number) = given.extract::<i128>() {
            Ok(Name::Int(number))
        } else if given.cast::<PyInt>().is_ok() {
            let message = "an int as key has at most 127 bits and a sign: give a longer one as bytes";
            Err(error::bad_value(given.py(), message))
        } else {
            let name = given.get_type().name()?;
            Err(PyTypeError::new_err(format!("a key is an int, bytes or a str, not {name}")))
        }
    }
}

impl<'py> IntoPyObject<'py> for &Name {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Name::Int(number) => number.into_pyobject(py)?.into_any(),
            Name::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
            Name::Text(text) => PyString::new(py, text).into_any(),
        })
    }
}

impl Held for KvCache<Name> {
    const NAME: &'static str = "cache";
    const SLOW: bool = true;
}

/// Values under keys: found by any thread, pinned while they are used, evicted when room is needed.
#[pyclass(name = "KvCache", module = "kvmem", frozen, weakref)]
pub(crate) struct PyKvCache {
    held: Holder<KvCache<Name>>,
    pool: Py<PyPool>,
    spill: Option<Py<PyAny>>,
}

impl PyKvCache {
    fn cache(&self) -> PyResult<Lent<KvCache<Name>>> {
        self.held.with(KvCache::clone).map(Lent::new)
    }
}

/// The spill did not do what it was told.
struct Failed;

/// Gives an evicted value to the spill. Where that raises, the value is dropped, its bytes are free, and the spill is told to forget what it has under the
/// key, which is older. If it does not do that either, or the interpreter is ending, that is the answer.
fn give(spill: &Py<PyAny>, pinned: Pinned<Name>) -> Result<(), Failed> {
    let given = process::call(|py| {
        let name = pinned.key().clone();
        let pinned = PyPinned { held: Holder::new(pinned) };
        let told = spill.call_method1(py, "evicted", (pinned,)).or_else(|error| {
            error.write_unraisable(py, Some(spill.bind(py)));
            spill.call_method1(py, "forget", (&name,))
        });
        told.map(drop).map_err(|error| {
            error.write_unraisable(py, Some(spill.bind(py)));
            Failed
        })
    });
    given.unwrap_or(Err(Failed))
}

#[pymethods]
impl PyKvCache {
    #[new]
    #[pyo3(signature = (pool, *, max_bytes=None, max_blocks=None, watermarks=None, eviction="lru", shards=None, spill=None))]
    fn create(
        pool: Bound<'_, PyPool>,
        max_bytes: Option<Size>,
        max_blocks: Option<u64>,
        watermarks: Option<(Size, Size)>,
        eviction: &str,
        shards: Option<usize>,
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
            builder = builder.bytes_at_most(bytes);
        }
        if let Some(blocks) = max_blocks {
            builder = builder.blocks_at_most(blocks);
        }
        if let Some((Size(low), Size(high))) = watermarks {
            builder = builder.watermarks(low, high);
        }
        if let Some(shards) = shards {
            builder = builder.shards(shards);
        }
        let spill =
            spill.map(|spill| spill.call_method1("__spill__", (&pool,))).transpose()?.map(Bound::unbind);
        if let Some(spill) = &spill {
            let spill = spill.clone_ref(py);
            builder = builder.on_evict(move |pinned| give(&spill, pinned));
        }
        let cache = builder.build().map_err(|error| error::cache_setup(py, &error))?;
        Ok(PyKvCache { held: Holder::new(cache), pool: pool.unbind(), spill })
    }

    /// Copies a value into a block and puts it under `key`. Evicts until it fits.
    fn insert(&self, py: Python<'_>, key: Name, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let source = Source::of(value)?;
        let room = self.cache()?.reserve(key, source.len()).map_err(|error| error::cache(py, &error))?;
        // SAFETY: the room is as long as the source, and nobody else's.
        unsafe { source.copy_to(py, room.block().as_ptr().cast_mut()) };
        drop(room.commit());
        Ok(())
    }

    /// Makes room for a value of `nbytes` bytes, to be written in place and then committed.
    fn reserve(&self, py: Python<'_>, key: Name, nbytes: Size) -> PyResult<PyReservation> {
        let room = self.cache()?.reserve(key, nbytes.bytes()).map_err(|error| error::cache(py, &error))?;
        Ok(PyReservation { held: Holder::new(room) })
    }

    /// The value under `key`, pinned; None if there is none. It counts as used. With a spill, that is asked for what is not here.
    fn get<'py>(slf: &Bound<'py, Self>, key: Name) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (this, py) = (slf.get(), slf.py());
        if let Some(pinned) = this.held.with(|cache| cache.get(&key))? {
            let pinned = PyPinned { held: Holder::new(pinned) };
            return Ok(Some(Bound::new(py, pinned)?.into_any()));
        }
        let Some(spill) = &this.spill else { return Ok(None) };
        let found = spill.bind(py).call_method1("fetch", (slf, &key))?;
        Ok((!found.is_none()).then_some(found))
    }

    /// The right to put in what is fetched from a lower tier; the value, pinned, if there is one; None if what the lower tier has may be old.
    fn lease<'py>(&self, py: Python<'py>, key: Name) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(match self.cache()?.lease(&key) {
            Leased::Lease(lease) => Some(Bound::new(py, PyLease { held: Holder::new(lease) })?.into_any()),
            Leased::Present(pinned) => {
                Some(Bound::new(py, PyPinned { held: Holder::new(pinned) })?.into_any())
            }
            Leased::Busy => None,
        })
    }

    /// Takes the value under `key` out, and returns it; None if there is none.
    fn remove(&self, py: Python<'_>, key: Name) -> PyResult<Option<PyPinned>> {
        let found = match &self.spill {
            None => self.held.with(|cache| cache.remove(&key))?,
            Some(spill) => {
                self.cache()?.remove_with(&key, || spill.call_method1(py, "forget", (&key,)).map(drop))?
            }
        };
        Ok(found.map(|pinned| PyPinned { held: Holder::new(pinned) }))
    }

    fn __contains__(&self, key: Name) -> PyResult<bool> {
        self.held.with(|cache| cache.contains(&key))
    }

    fn __len__(&self) -> PyResult<usize> {
        self.held.with(|cache| cache.len() as usize)
    }

    /// Takes every value out. Pins stay good.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.cache()?;
        py.detach(|| match &self.spill {
            None => {
                cache.clear();
                Ok(())
            }
            Some(spill) => {
                cache.clear_with(|| Python::attach(|py| spill.call_method0(py, "forget_all").map(drop)))
            }
        })
    }

    /// Evicts until at most so many bytes are held, or nothing is left that can go; returns how many are held then.
    fn evict_to(&self, py: Python<'_>, nbytes: Size) -> PyResult<u64> {
        let cache = self.cache()?;
        Ok(py.detach(|| cache.evict_to(nbytes.0)))
    }

    /// Bytes held, those being written included.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.held.with(KvCache::bytes)
    }

    /// The pool that the blocks are of.
    #[getter]
    fn pool(&self, py: Python<'_>) -> Py<PyPool> {
        self.pool.clone_ref(py)
    }

    /// The lower tier; None: there is none.
    #[getter]
    fn spill(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.spill.as_ref().map(|spill| spill.clone_ref(py))
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
                stats.refusals,
                stats.not_taken,
                stats.superseded,
            ),
        )
    }

    /// Gives the cache up, and all that it holds; ends its spill. Pins stay good.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.held.end(py)?;
        if let Some(spill) = &self.spill {
            spill.call_method0(py, "close")?;
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

/// A value of a cache that is not evicted while this exists. Its bytes are to be read.
#[pyclass(name = "Pinned", module = "kvmem", frozen, weakref)]
pub(crate) struct PyPinned {
    held: Holder<Pinned<Name>>,
}

memory_methods!(PyPinned, Pinned<Name>);

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

    /// Whether the key has been given another value since, or was removed. Being evicted does not count.
    #[getter]
    fn superseded(&self) -> PyResult<bool> {
        self.held.with(Pinned::is_superseded)
    }

    /// Lets go of it.
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

/// Room for one value of a cache, to be written in place.
#[pyclass(name = "Reservation", module = "kvmem", frozen, weakref)]
pub(crate) struct PyReservation {
    held: Holder<Reservation<Name>>,
}

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
    #[pyo3(signature = (source, start=0))]
    fn write(&self, py: Python<'_>, source: &Bound<'_, PyAny>, start: usize) -> PyResult<usize> {
        write(py, &self.held, source, start)
    }

    /// Makes it the value of its key. Nobody may have a view of it any more. Under a lease: if that is unbroken; else the room is given back, and None
    /// the answer. The lease ends.
    #[pyo3(signature = (*, lease=None))]
    fn commit(&self, py: Python<'_>, lease: Option<&PyLease>) -> PyResult<Option<PyPinned>> {
        let Some(lease) = lease else {
            let room = self.held.take()?;
            return Ok(Some(PyPinned { held: Holder::new(py.detach(|| room.commit())) }));
        };
        let taken = lease.held.take()?;
        let room = match self.held.take() {
            Ok(room) if taken.covers(&room) => room,
            other => {
                lease.held.put_back(taken);
                self.held.put_back(other?);
                return Err(error::bad_value(py, "the lease is of another key, or of another cache"));
            }
        };
        let committed = py.detach(|| room.commit_leased(taken).ok());
        Ok(committed.map(|pinned| PyPinned { held: Holder::new(pinned) }))
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
            Some(room) if kind.is_none() => drop(py.detach(|| room.commit())),
            room => drop_value(py, room),
        }
        Ok(())
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

/// The right to put in what is fetched from a lower tier, if nothing is put or removed under the key meanwhile.
#[pyclass(name = "Lease", module = "kvmem", frozen, weakref)]
pub(crate) struct PyLease {
    held: Holder<Lease<Name>>,
}

#[pymethods]
impl PyLease {
    /// Whether something was put or removed, so that nothing can be committed under it.
    #[getter]
    fn broken(&self) -> PyResult<bool> {
        self.held.with(|lease| !lease.is_unbroken())
    }

    /// Gives it up.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        drop_value(py, Some(self.held.take()?));
        Ok(())
    }

    fn __repr__(&self) -> String {
        match self.held.with(Lease::is_unbroken) {
            Ok(true) => "<kvmem.Lease>".to_owned(),
            Ok(false) => "<kvmem.Lease, broken>".to_owned(),
            Err(_) => "<kvmem.Lease, ended>".to_owned(),
        }
    }
}

context_manager!(PyLease, |it, py| it.held.end(py));

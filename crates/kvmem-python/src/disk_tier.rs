//! *DiskTier*: values on a disk, below a cache or on their own.
//!
//! Every call works without the GIL: it transfers bytes, or waits for a sync. Buffers of the
//! caller are exported meanwhile, so they stay where they are. Like views, they are the caller's:
//! a thread that writes to bytes that are being stored stores an undefined mixture, which a fetch
//! returns or reports as damaged.

use std::path::PathBuf;
use std::sync::Arc;

use kvmem::pool::kv_cache::LowerTierError;
use kvmem_tier::device::Engine;
use kvmem_tier::{Admission, DiskTier, Fetch, Fetched, OpenReport, TierError, TierOptions, Verify};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyTuple};

use crate::buffer::{Source, Span};
use crate::cache_key::CacheKey;
use crate::collect::{Plain, plain};
use crate::context::context_manager;
use crate::disk_key::disk_key;
use crate::disk_memory::{bytes_of, bytes_of_mut, targets};
use crate::error;
use crate::holder::{Held, Holder, Lent};
use crate::number::Int;
use crate::report::{self, Level};
use crate::size::Size;

/// The tier, shared with the caches above it.
pub(crate) type SharedTier = Arc<DiskTier>;

impl Held for SharedTier {
    const NAME: &'static str = "disk tier";
    const SLOW: bool = true;
}

/// Values on a local disk, found again by their keys after a restart. The bytes of a value are
/// verified whenever it is fetched: a damaged value is a miss, and never the wrong bytes. A full
/// tier evicts the values that were used least recently.
///
/// Below a cache it receives what the cache evicts: ``KvCache(pool, lower_tier=tier)``. Keys are
/// those of :class:`KvCache`. A ``bytes`` key is the same key in Rust and C. Any thread may call
/// any method; calls release the GIL.
///
/// One process uses a file at a time, and a forked child cannot use the tier of its parent.
///
/// Options:
///
/// - ``path``: file or block device. A new file is made if ``bytes`` is given.
/// - ``bytes``: length of the file; its space is allocated. A shorter file is lengthened, a longer
///   one stays. None keeps the length.
/// - ``depth``: maximum number of transfers that one call has in flight.
/// - ``max_entries``: maximum number of values, fixed when the file is made. The file keeps 128
///   bytes for each. None means one for each 32 KiB of the file.
/// - ``format``: make a new tier of a file that holds something else or is damaged, and lose what
///   is in it.
/// - ``verify``: ``lazy``, or ``all`` to read every value now and drop the damaged ones.
/// - ``admission``: which values that a cache evicts are written: ``all``, or
///   ``second_eviction`` for those whose key is evicted a second time. Values given to
///   :meth:`store` are always written.
/// - ``max_write_bytes_per_s``: maximum number of bytes of evicted values that are written per
///   second; more are dropped. None: no limit.
///
/// Raises :class:`DiskTierError` if the file cannot be used, and :class:`InvalidArgumentError`.
///
/// >>> import os, tempfile
/// >>> path = os.path.join(tempfile.mkdtemp(), "tier")
/// >>> with kvmem.DiskTier(path, bytes="16MiB") as tier:
/// ...     tier.store({"prefix 1": b"keys and values", 7: bytes(5000)})
/// >>> with kvmem.DiskTier(path) as tier:  # after a restart
/// ...     tier.report.entries, tier.fetch(["prefix 1", "prefix 2"])
/// (2, [b'keys and values', None])
#[pyclass(name = "DiskTier", module = "kvmem", frozen, weakref)]
pub(crate) struct PyDiskTier {
    held: Holder<SharedTier>,
    path: PathBuf,
    found: OpenReport,
    direct: bool,
    engine: &'static str,
}

impl Plain for SharedTier {}
impl Plain for PathBuf {}
impl Plain for OpenReport {}
impl Plain for bool {}
impl Plain for &'static str {}

plain!(PyDiskTier { held, path, found, direct, engine });

impl PyDiskTier {
    /// Returns the tier, for work that takes longer than a call.
    pub(crate) fn tier(&self) -> PyResult<Lent<SharedTier>> {
        self.held.with(Arc::clone).map(Lent::new)
    }
}

/// Returns the limit of transfers in flight that the library has.
const MAX_DEPTH: u64 = 4096;

fn options(
    py: Python<'_>,
    depth: Int<'_>,
    max_entries: Option<Int<'_>>,
    verify: &str,
    admission: &str,
    rate: Option<Size>,
) -> PyResult<TierOptions> {
    let wrong = |name: &str, given: &str, words: &str| {
        error::bad_value(py, format!("{name} is {given:?}: give {words}"))
    };
    let mut options = TierOptions {
        depth: Some(depth.within(py, "depth", 1..=MAX_DEPTH)? as u32),
        ..TierOptions::default()
    };
    if let Some(entries) = max_entries {
        options.max_entries = Some(entries.within(py, "max_entries", 1..=u64::MAX)?);
    }
    options.verify = match verify {
        "lazy" => Verify::Lazy,
        "all" => Verify::All,
        other => return Err(wrong("verify", other, "lazy or all")),
    };
    options.admission = match admission {
        "all" => Admission::All,
        "second_eviction" => Admission::SecondEviction,
        other => return Err(wrong("admission", other, "all or second_eviction")),
    };
    options.max_write_bytes_per_s =
        rate.map(|rate| at_least_one(py, "max_write_bytes_per_s", rate)).transpose()?;
    Ok(options)
}

fn at_least_one(py: Python<'_>, name: &str, Size(bytes): Size) -> PyResult<u64> {
    if bytes == 0 {
        let message = format!("{name} is 0: give at least 1, or None");
        return Err(error::bad_number(py, message, 0, 1));
    }
    Ok(bytes)
}

/// Returns the keys of a call, as the tier knows them.
fn keys_of(keys: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<u8>>> {
    let key = |key: PyResult<Bound<'_, PyAny>>| {
        Ok(disk_key(key?.extract::<CacheKey<'_>>()?).into_owned())
    };
    keys.try_iter()?.map(key).collect()
}

/// A key and its bytes.
type Pair<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Returns the keys and values of a mapping, or of pairs.
fn pairs<'py>(values: &Bound<'py, PyAny>) -> PyResult<Vec<Pair<'py>>> {
    let items = match values.getattr_opt("items")? {
        Some(items) => items.call0()?,
        None => values.clone(),
    };
    let pair = |item: PyResult<Bound<'py, PyAny>>| {
        item?.extract::<Pair<'py>>().map_err(|_| {
            PyTypeError::new_err("values are a mapping, or pairs of a key and its bytes")
        })
    };
    items.try_iter()?.map(pair).collect()
}

#[pymethods]
impl PyDiskTier {
    #[new]
    #[pyo3(signature = (
        path, *, bytes=None, depth=Int::usual(32), max_entries=None, format=false, verify="lazy",
        admission="all", max_write_bytes_per_s=None
    ), text_signature = "(path, *, bytes=None, depth=32, max_entries=None, format=False, \
        verify='lazy', admission='all', max_write_bytes_per_s=None)")]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn create(
        py: Python<'_>,
        path: PathBuf,
        bytes: Option<Size>,
        depth: Int<'_>,
        max_entries: Option<Int<'_>>,
        format: bool,
        verify: &str,
        admission: &str,
        max_write_bytes_per_s: Option<Size>,
    ) -> PyResult<PyDiskTier> {
        let rate = max_write_bytes_per_s;
        let mut options = options(py, depth, max_entries, verify, admission, rate)?;
        options.bytes = bytes.map(|bytes| at_least_one(py, "bytes", bytes)).transpose()?;
        options.format = format;
        let opened = py.detach(|| DiskTier::open(&path, &options));
        let (tier, found) =
            opened.map_err(|error| error::tier_open(py, &path, options.bytes, &error))?;
        let direct = tier.device().is_direct();
        let engine = match tier.device().engine() {
            Engine::IoUring => "io_uring",
            Engine::Threads => "threads",
        };
        let made = PyDiskTier { held: Holder::new(Arc::new(tier)), path, found, direct, engine };
        made.log(py)?;
        Ok(made)
    }

    /// Stores values under their keys, all of them together, and replaces the values that the
    /// keys had. ``values`` is a mapping, or pairs of a key and its bytes.
    ///
    /// A stored value is found again after the process was killed, and after a power cut once
    /// :meth:`sync` has returned. Values that begin at a multiple of 4096 bytes in memory are
    /// written from there; others are copied.
    ///
    /// Raises :class:`OutOfSpaceError` or :class:`DiskTierError` if a value could not be stored;
    /// its key has no value then. ``failed`` of the exception has the keys of all such values; the
    /// others are stored.
    fn store(&self, py: Python<'_>, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let tier = self.tier()?;
        let pairs = pairs(values)?;
        let mut keys = Vec::with_capacity(pairs.len());
        let mut sources = Vec::with_capacity(pairs.len());
        for (key, value) in &pairs {
            keys.push(disk_key(key.extract::<CacheKey<'_>>()?).into_owned());
            sources.push(Source::of(value)?);
        }
        let spans: Vec<Span> = sources.iter().map(Source::span).collect();
        let results = py.detach(|| {
            // SAFETY: `sources` borrows or exports the bytes until this call returns.
            let bytes = spans.iter().map(|span| unsafe { bytes_of(span) });
            let values: Vec<(&[u8], &[u8])> = keys.iter().map(|key| &**key).zip(bytes).collect();
            let results = tier.store(&values);
            // An older value must not be taken for the one that was not stored.
            let lost: Vec<&[u8]> = values
                .iter()
                .zip(&results)
                .filter(|(_, result)| result.is_err())
                .map(|((key, _), _)| *key)
                .collect();
            if !lost.is_empty() {
                // If this fails, too, the tier is read-only, which the error says.
                let _ = tier.remove(&lost);
            }
            results
        });
        let failed: Vec<_> =
            results.iter().zip(&pairs).filter(|(result, _)| result.is_err()).collect();
        match failed.first() {
            Some((Err(error), _)) => {
                let failed = failed.iter().map(|(_, (key, _))| key).collect::<Vec<_>>();
                Err(error::tier_store(py, error, failed))
            }
            _ => Ok(()),
        }
    }

    /// Returns the values of keys in the same order; None where there is no value, or where its
    /// bytes are damaged. All are read at once.
    fn fetch<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let tier = self.tier()?;
        let keys = keys_of(keys)?;
        let mut found: Vec<Option<Bound<'py, PyBytes>>> = vec![None; keys.len()];
        let mut wanted: Vec<usize> = (0..keys.len()).collect();
        // Again for values that were replaced by some of another length meanwhile.
        while !wanted.is_empty() {
            let key = |&index: &usize| &*keys[index];
            let len = |index| tier.len_of(key(index)).unwrap_or(0) as usize;
            let lens: Vec<usize> = py.detach(|| wanted.iter().map(len).collect());
            let values = lens
                .iter()
                .map(|&len| PyBytes::new_with(py, len, |_| Ok(())))
                .collect::<PyResult<Vec<_>>>()?;
            let spans: Vec<Span> = values
                .iter()
                .map(|value| value.as_bytes())
                .map(|bytes| Span::writable(bytes.as_ptr().cast_mut(), bytes.len()))
                .collect();
            let outcomes = py.detach(|| {
                // SAFETY: the objects were made above, and only this call knows them: their bytes
                // may be written until it returns them.
                let targets = spans.iter().map(|span| unsafe { bytes_of_mut(span) });
                let mut requests: Vec<Fetch<'_>> = wanted
                    .iter()
                    .zip(targets)
                    .map(|(index, into)| Fetch { key: key(index), into })
                    .collect();
                tier.fetch(&mut requests)
            });
            let mut again = Vec::new();
            for ((index, value), outcome) in wanted.into_iter().zip(values).zip(outcomes) {
                match outcome {
                    Fetched::Hit => found[index] = Some(value),
                    Fetched::Length { .. } => again.push(index),
                    _ => {}
                }
            }
            wanted = again;
        }
        Ok(found)
    }

    /// Reads the values of keys into writable buffers, one for each key, all at once. Returns
    /// the length of each value, or None where there is no value, or where its bytes are damaged.
    /// The bytes of a buffer mean something only up to that length.
    ///
    /// A buffer may be longer than the value. Memory that begins at a multiple of 4096 bytes is
    /// read into directly, such as a block of ``Pool.allocate(n, align=4096)``.
    ///
    /// Raises :class:`InvalidBufferError` if a buffer is read-only, shorter than the value, or
    /// shares bytes with another.
    fn fetch_into(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<Option<usize>>> {
        let tier = self.tier()?;
        let keys = keys_of(keys)?;
        let targets = targets(buffers, keys.len())?;
        let spans: Vec<Span> = targets.iter().map(|target| target.span).collect();
        let mut found = vec![None; keys.len()];
        let mut wanted: Vec<usize> = (0..keys.len()).collect();
        // Again for values that were replaced by some of another length meanwhile.
        while !wanted.is_empty() {
            let key = |&index: &usize| &*keys[index];
            let len = |index| tier.len_of(key(index)).unwrap_or(0) as usize;
            let lens: Vec<usize> = py.detach(|| wanted.iter().map(len).collect());
            for (&index, &len) in wanted.iter().zip(&lens) {
                if len > spans[index].len {
                    let message = format!(
                        "buffer {index} has {} bytes, and the value {len}: give a longer one",
                        spans[index].len
                    );
                    return Err(error::short_buffer(py, message, spans[index].len, len));
                }
            }
            let outcomes = py.detach(|| {
                let mut requests: Vec<Fetch<'_>> = wanted
                    .iter()
                    .zip(&lens)
                    .map(|(index, &len)| {
                        let span = Span { len, ..spans[*index] };
                        // SAFETY: the buffers are exported and writable until this call returns,
                        // and none shares bytes with another.
                        Fetch { key: key(index), into: unsafe { bytes_of_mut(&span) } }
                    })
                    .collect();
                tier.fetch(&mut requests)
            });
            let mut again = Vec::new();
            for ((index, len), outcome) in wanted.into_iter().zip(lens).zip(outcomes) {
                match outcome {
                    Fetched::Hit => found[index] = Some(len),
                    Fetched::Length { .. } => again.push(index),
                    _ => {}
                }
            }
            wanted = again;
        }
        Ok(found)
    }

    /// Returns the length of a value in bytes, or None if there is none. It does not count as
    /// used.
    fn len_of(&self, key: CacheKey<'_>) -> PyResult<Option<u64>> {
        let key = disk_key(key);
        self.held.with(|tier| tier.len_of(&key))
    }

    fn __contains__(&self, key: CacheKey<'_>) -> PyResult<bool> {
        Ok(self.len_of(key)?.is_some())
    }

    fn __len__(&self) -> PyResult<usize> {
        self.held.with(|tier| tier.stats().entries as usize)
    }

    /// A tier is true even if it is empty, so `tier or default` is the tier.
    fn __bool__(&self) -> bool {
        true
    }

    /// Removes the values of keys and returns how many there were. They do not come back after
    /// the process was killed; after a power cut they do unless :meth:`sync` has returned since.
    ///
    /// Raises :class:`DiskTierError` if the removal could not be recorded: the values are not found
    /// in this process, but may be after a restart.
    fn remove(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let tier = self.tier()?;
        let keys = keys_of(keys)?;
        let removed = py.detach(|| tier.remove(&keys.iter().map(|key| &**key).collect::<Vec<_>>()));
        removed.map_err(|error| error::tier(py, &error))
    }

    /// Removes all values, durably. Raises as :meth:`remove`.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let tier = self.tier()?;
        py.detach(|| tier.clear()).map_err(|error| error::tier(py, &error))
    }

    /// Makes all that was stored and removed before durable: a power cut does not undo it.
    /// Raises :class:`DiskTierError`; the tier stores nothing then until it is opened again.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let tier = self.tier()?;
        py.detach(|| tier.sync_all()).map_err(|error| error::tier(py, &error))
    }

    /// Writes the index, so that opening the file is fast, and syncs. The tier does so by itself
    /// when its journal is full. Raises as :meth:`sync`.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        let tier = self.tier()?;
        py.detach(|| tier.checkpoint()).map_err(|error| error::tier(py, &error))
    }

    /// Returns the figures of the tier.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let tier = self.tier()?;
        let stats = py.detach(|| tier.stats());
        let fields = [
            stats.entries,
            stats.bytes,
            stats.capacity,
            stats.used,
            stats.quarantined,
            stats.stored,
            stats.written_bytes,
            stats.metadata_bytes,
            stats.hits,
            stats.misses,
            stats.checksum_misses,
            stats.io_misses,
            stats.not_admitted,
            stats.evictions,
            stats.checkpoints,
            stats.index_bytes,
        ];
        let mut all = Vec::with_capacity(fields.len() + 1);
        for field in fields {
            all.push(field.into_pyobject(py)?.into_any());
        }
        all.push(PyBool::new(py, stats.read_only).to_owned().into_any());
        report::named(py, "DiskTierStats", PyTuple::new(py, all)?)
    }

    /// What opening the file found.
    #[getter]
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let OpenReport { created, entries, replayed, dropped, damaged, .. } = self.found;
        report::named(py, "OpenReport", (created, entries, replayed, dropped, damaged))
    }

    /// Path of the file or block device.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Whether transfers bypass the page cache. False on a file system without direct I/O.
    #[getter]
    fn direct(&self) -> bool {
        self.direct
    }

    /// How bytes are transferred: ``io_uring``, or ``threads`` where it is not allowed.
    #[getter]
    fn engine(&self) -> &'static str {
        self.engine
    }

    /// Closes the tier. The file stays open and locked until the caches above it are closed,
    /// too.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.held.end(py)
    }

    /// Whether the tier has been closed.
    #[getter]
    fn closed(&self) -> bool {
        self.held.is_gone()
    }

    fn __repr__(&self) -> String {
        match self.held.with(|tier| tier.stats()) {
            Ok(stats) => format!(
                "<kvmem.DiskTier of {} values, {} of {} bytes used>",
                stats.entries, stats.used, stats.capacity
            ),
            Err(_) => "<kvmem.DiskTier, closed>".to_owned(),
        }
    }
}

context_manager!(PyDiskTier, PyDiskTier::close);

impl PyDiskTier {
    /// Logs what makes the tier slower or smaller than it could be.
    fn log(&self, py: Python<'_>) -> PyResult<()> {
        let path = self.path.display();
        let warn = |line: String| report::log(py, "tier", Level::Warning, || line);
        if self.engine == "threads" {
            warn(format!(
                "{path}: this process may not use io_uring, so threads transfer the bytes, which \
                 is slower: kvmem doctor says why"
            ))?;
        }
        if !self.direct {
            warn(format!(
                "{path}: its file system has no direct I/O, so all bytes go through the page cache"
            ))?;
        }
        let OpenReport { entries, dropped, damaged, .. } = self.found;
        if dropped + damaged > 0 {
            warn(format!(
                "{path}: {dropped} entries were dropped and {damaged} values removed as damaged; \
                 {entries} are left"
            ))?;
        }
        report::log(py, "tier", Level::Info, || format!("{path}: {entries} values found"))
    }
}

/// Converts the error of a cache's lower tier.
#[cold]
pub(crate) fn lower_tier_error(py: Python<'_>, error: &LowerTierError) -> PyErr {
    match error.downcast_ref::<TierError>() {
        Some(error) => error::tier(py, error),
        None => PyRuntimeError::new_err(error.to_string()),
    }
}

//! *TierSet*: disk tiers on several devices, which hold values together.

use std::path::PathBuf;
use std::sync::Arc;

use kvmem_tier::{OpenReport, TierSet, TierSetError};
use pyo3::prelude::*;

use crate::admit::{AdmissionArgument, Admit};
use crate::collect::{Plain, collected};
use crate::disk_tier::{Options, log, open_report};
use crate::error;
use crate::holder::Holder;
use crate::number::{Int, Several};
use crate::report::{self, Level};
use crate::size::Size;
use crate::tier_values::{SharedTier, tier_methods};

/// Disk tiers on several devices, which hold values together. Each key belongs to one of them,
/// by a hash of the key and of the file's identity: files may be named in any order, and a device
/// that is gone loses only its own keys. Transfers on different devices run side by side.
///
/// Below a cache it is used as a :class:`DiskTier`. Options, which hold for each of the files:
///
/// - ``paths``: files or block devices. New files are made if ``bytes`` is given.
/// - ``bytes``: length of the file; its space is allocated. A shorter file is lengthened, a longer
///   one stays. None keeps the length.
/// - ``depth``: maximum number of transfers that one call has in flight.
/// - ``max_entries``: maximum number of values, fixed when the file is made. The file keeps 260
///   bytes for each. None means one for each 32 KiB of the file.
/// - ``journal_bytes``: length of each of the two journals, fixed when the file is made. None:
///   that of a checkpoint of ``max_entries`` values, or 1/64 of the file up to 4 MiB if that is
///   longer.
/// - ``dsync``: open the file with ``O_DSYNC``. A value survives a power cut as soon as it is
///   stored, and storing takes longer. Otherwise :meth:`sync` makes values durable.
/// - ``format``: make a new tier of a file that holds something else or is damaged, and lose what
///   is in it.
/// - ``verify``: ``lazy``, or ``all`` to read every value now and drop the damaged ones.
/// - ``admission``: which values that a cache evicts are written: ``all``, ``second_eviction`` for
///   those whose key is evicted a second time, or a callable that is called with ``(key, value)``
///   and returns whether the value is written. ``value`` is a ``memoryview``, which is released
///   after the call. The callable must be short, and must not use the cache or the tier. If it
///   raises, the value is not written, and the exception goes to ``sys.unraisablehook``. Values
///   given to :meth:`store` are always written.
/// - ``eviction``: which values a full tier evicts first, of those with the same priority:
///   ``lru`` for those used least recently, or ``fifo`` for those stored first.
/// - ``max_write_bytes_per_s``: maximum number of bytes that are written per second, those of the
///   index too: an evicted value that comes when they are used up is dropped. Values given to
///   :meth:`store` are always written, and count. None: no limit.
/// - ``take_over``: open a tier that a process of another host had open, which has ended without
///   closing it. Otherwise that is an error. A process of this host needs no such word.
/// - ``available``: go on without those that cannot be opened. Their keys belong to the others
///   meanwhile. A device that comes back has the values of the time before: a value that was
///   replaced meanwhile is found in its older form, unless keys are hashes of their values.
///
/// Raises as :class:`DiskTier`.
///
/// >>> import os, tempfile
/// >>> folder = tempfile.mkdtemp()
/// >>> paths = [os.path.join(folder, name) for name in ("nvme0", "nvme1")]
/// >>> with kvmem.TierSet(paths, bytes="16MiB") as tiers:
/// ...     tiers.store({n: bytes([n]) * 5000 for n in range(100)}, priority=1)
/// ...     len(tiers), all(report.created for report in tiers.reports)
/// (100, True)
#[pyclass(name = "TierSet", module = "kvmem", frozen, weakref)]
pub(crate) struct PyTierSet {
    held: Holder<SharedTier>,
    paths: Vec<PathBuf>,
    found: Vec<Option<OpenReport>>,
    admit: Option<Arc<Admit>>,
}

impl Plain for Vec<PathBuf> {}
impl Plain for Vec<Option<OpenReport>> {}

collected!(PyTierSet { held, paths, found, admit }, |it, py| {
    it.admit.iter().for_each(|admit| admit.0.cut(py));
});

#[pymethods]
impl PyTierSet {
    #[new]
    #[pyo3(signature = (
        paths, *, bytes=None, depth=Int::usual(32), max_entries=None, journal_bytes=None,
        dsync=false, format=false, verify="lazy", admission=AdmissionArgument::all(),
        eviction="lru", max_write_bytes_per_s=None, take_over=false, available=false
    ), text_signature = "(paths, *, bytes=None, depth=32, max_entries=None, \
        journal_bytes=None, dsync=False, format=False, verify='lazy', admission='all', \
        eviction='lru', max_write_bytes_per_s=None, take_over=False, \
        available=False)")]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn create<'py>(
        py: Python<'py>,
        paths: Several<PathBuf>,
        bytes: Option<Size>,
        depth: Int<'py>,
        max_entries: Option<Int<'py>>,
        journal_bytes: Option<Size>,
        dsync: bool,
        format: bool,
        verify: &str,
        admission: AdmissionArgument,
        eviction: &str,
        max_write_bytes_per_s: Option<Size>,
        take_over: bool,
        available: bool,
    ) -> PyResult<PyTierSet> {
        let admit = admission.admit();
        let options = Options {
            bytes,
            depth,
            max_entries,
            journal_bytes,
            dsync,
            format,
            verify,
            admission,
            eviction,
            max_write_bytes_per_s,
            take_over,
        };
        let options = options.tier_options(py)?;
        let Several(paths) = paths;
        let raise = |error: &TierSetError| match error {
            TierSetError::Open { path, source } => {
                error::tier_open(py, path, options.bytes, source)
            }
            _ => error::bad_value(py, error),
        };
        let opened = py.detach(|| {
            if available {
                return TierSet::open_available(&paths, &options);
            }
            let (set, found) = TierSet::open(&paths, &options)?;
            Ok((set, found.into_iter().map(Ok).collect()))
        });
        let (set, results) = opened.map_err(|error| raise(&error))?;
        let mut found = Vec::with_capacity(results.len());
        {
            let mut tiers = set.in_given_order();
            for (path, result) in paths.iter().zip(&results) {
                if let Err(error) = result {
                    let line = || format!("the set goes on without a tier: {error}");
                    report::log(py, "tier", Level::Warning, line)?;
                } else if let (Ok(report), Some(tier)) = (result, tiers.next()) {
                    log(py, path, tier, report)?;
                }
                found.push(result.as_ref().ok().copied());
            }
        }
        Ok(PyTierSet { held: Holder::new(Arc::new(set)), paths, found, admit })
    }

    /// What opening each file found; None for those that could not be opened.
    #[getter]
    fn reports<'py>(&self, py: Python<'py>) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let report = |found: &Option<OpenReport>| {
            found.as_ref().map(|found| open_report(py, found)).transpose()
        };
        self.found.iter().map(report).collect()
    }

    /// Paths of the files or block devices.
    #[getter]
    fn paths(&self) -> Vec<PathBuf> {
        self.paths.clone()
    }

    fn __repr__(&self) -> String {
        match self.held.with(|set| (set.tiers().len(), set.stats())) {
            Ok((tiers, stats)) => format!(
                "<kvmem.TierSet of {tiers} tiers, {} values, {} of {} bytes used>",
                stats.entries, stats.used, stats.capacity
            ),
            Err(_) => "<kvmem.TierSet, closed>".to_owned(),
        }
    }
}

tier_methods!(PyTierSet);

//! *DiskTier*: values on a disk, below a cache or on their own. Its methods for values are those of
//! [`tier_methods`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvmem_tier::{DiskTier, DiskTierOptions, EvictionOrder, OpenReport, TierSet, Verify};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::admit::{AdmissionArgument, Admit};
use crate::collect::{Plain, collected};
use crate::error;
use crate::holder::Holder;
use crate::number::{Callback, Int};
use crate::report::{self, Level};
use crate::size::Size;
use crate::tier_inspection;
use crate::tier_inspection::engine_of;
use crate::tier_values::{SharedTier, tier_methods};

#[doc = doc!("DiskTier")]
#[pyclass(name = "DiskTier", module = "kvmem", frozen, weakref)]
pub(crate) struct PyDiskTier {
    held: Holder<SharedTier>,
    path: PathBuf,
    found: OpenReport,
    direct: bool,
    engine: &'static str,
    admit: Option<Arc<Admit>>,
}

impl Plain for PathBuf {}
impl Plain for OpenReport {}
impl Plain for bool {}
impl Plain for &'static str {}

collected!(PyDiskTier { held, path, found, direct, engine, admit }, |it, py| {
    it.admit.iter().for_each(|admit| admit.0.cut(py));
});

/// Returns the limit of transfers in flight that the library has.
const MAX_DEPTH: u64 = 4096;

/// The keyword arguments of tiers and sets.
pub(crate) struct Options<'a, 'py> {
    pub(crate) bytes: Option<Size>,
    pub(crate) depth: Int<'py>,
    pub(crate) max_entries: Option<Int<'py>>,
    pub(crate) journal_bytes: Option<Size>,
    pub(crate) dsync: bool,
    pub(crate) format: bool,
    pub(crate) verify: &'a str,
    pub(crate) admission: AdmissionArgument,
    pub(crate) eviction: &'a str,
    pub(crate) max_write_bytes_per_s: Option<Size>,
    pub(crate) take_over: bool,
}

impl<'py> Options<'_, 'py> {
    /// Converts the arguments.
    pub(crate) fn tier_options(self, py: Python<'py>) -> PyResult<DiskTierOptions> {
        let wrong = |name: &str, given: &str, words: &str| {
            error::bad_value(py, format!("{name} is {given:?}: give {words}"))
        };
        let mut options = DiskTierOptions {
            depth: Some(self.depth.within(py, "depth", 1..=MAX_DEPTH)? as u32),
            dsync: self.dsync,
            format: self.format,
            take_over: self.take_over,
            ..DiskTierOptions::default()
        };
        if let Some(entries) = self.max_entries {
            options.max_entries = Some(entries.within(py, "max_entries", 1..=u64::MAX)?);
        }
        options.verify = match self.verify {
            "lazy" => Verify::Lazy,
            "all" => Verify::All,
            other => return Err(wrong("verify", other, "lazy or all")),
        };
        options.admission = self.admission.admission(py)?;
        options.eviction = match self.eviction {
            "lru" => EvictionOrder::Lru,
            "fifo" => EvictionOrder::Fifo,
            other => return Err(wrong("eviction", other, "lru or fifo")),
        };
        let rate = self.max_write_bytes_per_s;
        options.max_write_bytes_per_s =
            rate.map(|rate| at_least_one(py, "max_write_bytes_per_s", rate)).transpose()?;
        let journal = self.journal_bytes;
        options.journal_bytes =
            journal.map(|bytes| at_least_one(py, "journal_bytes", bytes)).transpose()?;
        options.bytes = self.bytes.map(|bytes| at_least_one(py, "bytes", bytes)).transpose()?;
        Ok(options)
    }
}

fn at_least_one(py: Python<'_>, name: &str, Size(bytes): Size) -> PyResult<u64> {
    if bytes == 0 {
        let message = format!("{name} is 0: give at least 1, or None");
        return Err(error::bad_number(py, message, 0, 1));
    }
    Ok(bytes)
}

#[pymethods]
impl PyDiskTier {
    #[new]
    #[pyo3(signature = (
        path, *, bytes=None, depth=Int::usual(32), max_entries=None, journal_bytes=None,
        dsync=false, format=false, verify="lazy", admission=AdmissionArgument::all(),
        eviction="lru", max_write_bytes_per_s=None, take_over=false
    ), text_signature = "(path, *, bytes=None, depth=32, max_entries=None, \
        journal_bytes=None, dsync=False, format=False, verify='lazy', admission='all', \
        eviction='lru', max_write_bytes_per_s=None, take_over=False)")]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn create<'py>(
        py: Python<'py>,
        path: PathBuf,
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
    ) -> PyResult<PyDiskTier> {
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
        let opened = py.detach(|| DiskTier::open(&path, &options));
        let (tier, found) =
            opened.map_err(|error| error::tier_open(py, &path, options.bytes, &error))?;
        log(py, &path, &tier, &found)?;
        let direct = tier.device().is_direct();
        let engine = engine_of(tier.device());
        let tier =
            TierSet::new(vec![tier]).map_err(|error| error::bad_value(py, error.to_string()))?;
        Ok(PyDiskTier { held: Holder::new(Arc::new(tier)), path, found, direct, engine, admit })
    }

    #[doc = doc!("DiskTier.inspect")]
    #[staticmethod]
    fn inspect(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
        tier_inspection::inspection(py, &path)
    }

    #[doc = doc!("DiskTier.verify")]
    #[staticmethod]
    #[pyo3(signature = (
        path, *, depth=Int::usual(32), max_damaged_values=Int::usual(1000), progress=None
    ), text_signature = "(path, *, depth=32, max_damaged_values=1000, progress=None)")]
    fn verify<'py>(
        py: Python<'py>,
        path: PathBuf,
        depth: Int<'py>,
        max_damaged_values: Int<'py>,
        progress: Option<Callback>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let depth = depth.within(py, "depth", 1..=MAX_DEPTH)? as u32;
        let named = max_damaged_values.within(py, "max_damaged_values", 0..=u64::MAX)?;
        tier_inspection::verification(py, &path, depth, named as usize, progress)
    }

    #[doc = doc!("DiskTier.report")]
    #[getter]
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        open_report(py, &self.found)
    }

    #[doc = doc!("DiskTier.path")]
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    #[doc = doc!("DiskTier.direct")]
    #[getter]
    fn direct(&self) -> bool {
        self.direct
    }

    #[doc = doc!("DiskTier.engine")]
    #[getter]
    fn engine(&self) -> &'static str {
        self.engine
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

tier_methods!(PyDiskTier);

/// Converts a report.
pub(crate) fn open_report<'py>(py: Python<'py>, found: &OpenReport) -> PyResult<Bound<'py, PyAny>> {
    report::statistics(py, "OpenReport", found, &PyDict::new(py))
}

/// Logs what makes a tier slower or smaller than it could be.
pub(crate) fn log(
    py: Python<'_>,
    path: &Path,
    tier: &DiskTier,
    found: &OpenReport,
) -> PyResult<()> {
    let path = path.display();
    let warn = |line: String| report::log(py, "tier", Level::Warning, || line);
    if engine_of(tier.device()) == "threads" {
        warn(format!(
            "{path}: this process may not use io_uring, so threads transfer the bytes, which is \
             slower: kvmem doctor says why"
        ))?;
    }
    if !tier.device().is_direct() {
        warn(format!(
            "{path}: its file system has no direct I/O, so all bytes go through the page cache"
        ))?;
    }
    let OpenReport { entries, dropped, damaged, .. } = *found;
    if dropped + damaged > 0 {
        warn(format!(
            "{path}: {dropped} entries were dropped and {damaged} values removed as damaged; \
             {entries} are left"
        ))?;
    }
    if let Some(line) = found.journal_damage() {
        warn(format!("{path}: {line}"))?;
    }
    report::log(py, "tier", Level::Info, || format!("{path}: {entries} values found"))
}

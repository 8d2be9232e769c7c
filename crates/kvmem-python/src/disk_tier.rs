//! *DiskTier*: values on a disk, below a cache or on their own. Its methods for values are those of
//! [`tier_methods`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvmem_tier::{
    Codec, DiskTier, DiskTierOptions, EvictionOrder, Keyring, OpenReport, TierSet, Verify,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::admit::{AdmissionArgument, Admit};
use crate::collect::{Plain, collected};
use crate::error;
use crate::holder::Holder;
use crate::keywords::Keywords;
use crate::number::{Callback, Int, plain};
use crate::report::{self, Level};
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

/// Takes the options of tiers and sets.
pub(crate) fn tier_options(
    py: Python<'_>,
    options: &Keywords<'_>,
) -> PyResult<(DiskTierOptions, Option<Arc<Admit>>)> {
    let admission = match options.object("admission")? {
        Some(given) => options.convert("admission", &given)?,
        None => AdmissionArgument::all(),
    };
    let admit = admission.admit();
    let (codec, keys) = encoding(py, options)?;
    let options = DiskTierOptions {
        bytes: options.some_bytes("bytes")?,
        max_entries: options.number("max_entries", 1, u64::MAX)?,
        dsync: options.flag("dsync", false)?,
        format: options.flag("format", false)?,
        verify: options.choice("verify", [("lazy", Verify::Lazy), ("all", Verify::All)])?,
        admission: admission.admission(py)?,
        eviction: options
            .choice("eviction", [("lru", EvictionOrder::Lru), ("fifo", EvictionOrder::Fifo)])?,
        max_write_bytes_per_s: options.some_bytes("max_write_bytes_per_s")?,
        take_over: options.flag("take_over", false)?,
        codec,
        keys,
        ..DiskTierOptions::default()
    };
    Ok((options, admit))
}

/// Takes the options of the encoding of values.
pub(crate) fn encoding(
    py: Python<'_>,
    options: &Keywords<'_>,
) -> PyResult<(Codec, Option<Arc<Keyring>>)> {
    let codecs = [Codec::None, Codec::Auto].map(|codec| (codec.name(), codec));
    let codec = options.choice("codec", codecs)?;
    let keys = options.take("key_file")?.map(|path: PathBuf| keyring(py, &path)).transpose()?;
    Ok((codec, keys))
}

/// Reads a key file.
pub(crate) fn keyring(py: Python<'_>, path: &Path) -> PyResult<Arc<Keyring>> {
    // A pipe may come late.
    let keys = py.detach(|| Keyring::open(path)).map(Arc::new);
    keys.map_err(|error| error::key_file(py, path, &error))
}

#[pymethods]
impl PyDiskTier {
    #[new]
    #[pyo3(signature = (path, **options), text_signature = "(path, *, bytes=None, \
        max_entries=None, dsync=False, format=False, verify='lazy', admission='all', \
        eviction='lru', max_write_bytes_per_s=None, take_over=False, codec='none', \
        key_file=None)")]
    fn create(
        py: Python<'_>,
        #[pyo3(from_py_with = plain)] path: PathBuf,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<PyDiskTier> {
        let keywords = Keywords::new(py, "DiskTier", options);
        let (options, admit) = tier_options(py, &keywords)?;
        keywords.end()?;
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
    fn inspect(
        py: Python<'_>,
        #[pyo3(from_py_with = plain)] path: PathBuf,
    ) -> PyResult<Bound<'_, PyAny>> {
        tier_inspection::inspection(py, &path)
    }

    #[doc = doc!("DiskTier.verify")]
    #[staticmethod]
    #[pyo3(
        signature = (path, *, max_damaged_values=Int::usual(1000), progress=None, key_file=None),
        text_signature = "(path, *, max_damaged_values=1000, progress=None, key_file=None)"
    )]
    fn verify<'py>(
        py: Python<'py>,
        #[pyo3(from_py_with = plain)] path: PathBuf,
        max_damaged_values: Int<'py>,
        progress: Option<Callback>,
        #[pyo3(from_py_with = plain)] key_file: Option<PathBuf>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keys = key_file.map(|path| keyring(py, &path)).transpose()?;
        let named = max_damaged_values.within(py, "max_damaged_values", 0..=u64::MAX)?;
        tier_inspection::verification(py, &path, keys, named as usize, progress)
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

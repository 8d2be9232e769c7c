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

#[doc = doc!("TierSet")]
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
            let mut tiers = set.in_path_order();
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

    #[doc = doc!("TierSet.reports")]
    #[getter]
    fn reports<'py>(&self, py: Python<'py>) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let report = |found: &Option<OpenReport>| {
            found.as_ref().map(|found| open_report(py, found)).transpose()
        };
        self.found.iter().map(report).collect()
    }

    #[doc = doc!("TierSet.paths")]
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

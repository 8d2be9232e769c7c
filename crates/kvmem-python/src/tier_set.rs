//! *TierSet*: disk tiers on several devices, which hold values together.

use std::path::PathBuf;
use std::sync::Arc;

use kvmem_tier::{OpenReport, TierSet, TierSetError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::admit::Admit;
use crate::collect::{Plain, collected};
use crate::disk_tier::{log, open_report, tier_options};
use crate::error;
use crate::holder::Holder;
use crate::keywords::Keywords;
use crate::number::Several;
use crate::report::{self, Level};
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
    #[pyo3(signature = (paths, **options), text_signature = "(paths, *, bytes=None, \
        max_entries=None, dsync=False, format=False, verify='lazy', admission='all', \
        eviction='lru', max_write_bytes_per_s=None, take_over=False, codec='none', \
        key_file=None, available=False)")]
    fn create(
        py: Python<'_>,
        paths: Several<PathBuf>,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<PyTierSet> {
        let keywords = Keywords::new(py, "TierSet", options);
        let (options, admit) = tier_options(py, &keywords)?;
        let available = keywords.flag("available", false)?;
        keywords.end()?;
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

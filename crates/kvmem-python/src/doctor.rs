//! *Doctor*: checks the limits of this machine; and *mount report*: maps and registers memory to
//! report the result.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use kvmem::arena::preflight::{Requirements, Verdict};
use kvmem::arena::{CancelToken, Populate, Region};
use kvmem::register::{MountReport, RegisterError, RegistrationSet, diagnose};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error;
use crate::keywords::Keywords;
use crate::long;
use crate::number::{Callback, Int, Several};
use crate::options;
use crate::progress::{self, Listener};
use crate::report;
use crate::size::Size;

#[doc = doc!("doctor")]
#[pyfunction]
#[pyo3(
    signature = (size=Size(1 << 30), **options),
    text_signature = "(size='1GiB', *, pages=None, nodes=None, shared=False, pinned=True, \
        tier=None, tier_size='1GiB')"
)]
pub(crate) fn doctor<'py>(
    py: Python<'py>,
    size: Size,
    options: Option<Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = Keywords::new(py, "doctor", options);
    let nodes = options.take::<Several<Int<'py>>>("nodes")?.map_or_else(Vec::new, |all| all.0);
    let nodes = nodes.into_iter().map(|node| node.u32(py, "a node"));
    let nodes = nodes.collect::<PyResult<Vec<u32>>>()?;
    let pages = options.take("pages")?;
    let (shared, pinned) = (options.flag("shared", false)?, options.flag("pinned", true)?);
    let (tier, tier_size) = (options.take::<PathBuf>("tier")?, options.bytes("tier_size")?);
    let tier_size = tier_size.unwrap_or(1 << 30);
    options.end()?;
    let requirements = Requirements::new(size.0, options::ladder(py, pages.as_ref(), false)?);
    let requirements = requirements.map_err(|error| error::bad_value(py, error))?;
    let requirements = requirements.shared(shared).pinned(pinned).nodes(nodes);
    let diagnosis = py.detach(|| {
        let mut diagnosis = diagnose(&requirements);
        if let Some(path) = &tier {
            diagnosis.report.add(kvmem_tier::preflight::checks(path, tier_size));
        }
        diagnosis
    });
    let failed: Vec<String> =
        diagnosis.report.with(Verdict::Fail).map(|check| check.name.to_string()).collect();
    report::named(
        py,
        "Diagnosis",
        (
            report::data(py, &diagnosis)?,
            diagnosis.to_string(),
            requirements.to_string(),
            failed,
            diagnosis.report.fix_script(),
        ),
    )
}

#[doc = doc!("mount_report")]
#[pyfunction]
#[pyo3(signature = (size, **options), text_signature = "(size, *, pages=None, strict=False, \
    numa=None, populate='auto', devices=None, policy=None, chunk=None, time_budget=None, \
    progress=None)")]
pub(crate) fn mount_report<'py>(
    py: Python<'py>,
    size: Size,
    options: Option<Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = Keywords::new(py, "mount_report", options);
    let cancel = CancelToken::new();
    let (pages, strict) = (options.take("pages")?, options.flag("strict", false)?);
    let populate = options.populate()?;
    let limit = options.seconds("time_budget")?;
    let policy = options::policy(py, options.text("policy")?.as_deref())?;
    let registrars = options::devices(py, options.take("devices")?.as_ref())?;
    let mut builder = Region::builder(size.bytes())
        .ladder(options::ladder(py, pages.as_ref(), strict)?)
        .numa(options::numa(py, options.text("numa")?.as_deref())?)
        .cancel(cancel.clone());
    let (chunk, progress) = (options.bytes("chunk")?, options.take("progress")?);
    options.end()?;
    let listener = progress.map(|Callback(callback)| {
        let populated = if populate == Populate::None { 0 } else { size.0 };
        Listener::new(
            callback,
            cancel.clone(),
            populated,
            size.0.saturating_mul(registrars.len() as u64),
        )
    });
    if registrars.is_empty() {
        builder = builder.populate(populate);
        if let Some(limit) = limit {
            builder = builder.time_budget(limit);
        }
        if let Some(listener) = listener.clone() {
            builder = builder.progress(move |progress| listener.populate(&progress));
        }
        let region = long::run(py, &cancel, || builder.map());
        let region = region.and_then(|region| region.map_err(|error| error::arena(py, &error)));
        let region = progress::end(py, listener.as_ref(), region)?;
        let found = report::report(py, region.receipt());
        py.detach(|| drop(region));
        return found;
    }
    let mut set = RegistrationSet::builder()
        .registrars(registrars)
        .policy(policy)
        .populate(populate)
        .cancel(cancel.clone());
    if let Some(bytes) = chunk {
        set = set.chunk_bytes(bytes);
    }
    if let Some(limit) = limit {
        set = set.time_budget(limit);
    }
    if let Some(listener) = listener.clone() {
        set = set.progress(move |progress| listener.register(&progress));
    }
    let mount = || -> Result<MountReport, RegisterError> {
        let (region, map) = timed(|| builder.map());
        let region = Arc::new(region?);
        let (planned, plan) = timed(|| set.plan(&region));
        planned?;
        let (set, register) = timed(|| set.register(Arc::clone(&region)));
        let mut set = set?;
        let receipt = region.receipt_now()?;
        if strict {
            receipt.check_hugepages()?;
        }
        let (back, deregister) = timed(|| set.deregister());
        Ok(MountReport::new(
            receipt,
            set.outcome().clone(),
            back?,
            [map, plan, register, deregister],
        ))
    };
    let mounted = long::run(py, &cancel, mount);
    let mounted = mounted.and_then(|mounted| mounted.map_err(|error| error::register(py, &error)));
    report::report(py, &progress::end(py, listener.as_ref(), mounted)?)
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed().as_secs_f64())
}

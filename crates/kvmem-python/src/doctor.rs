//! *Doctor*: checks the limits of this machine; and *mount report*: maps and registers memory to
//! report the result.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use kvmem::arena::preflight::{Requirements, Verdict};
use kvmem::arena::{CancelToken, Populate, Region};
use kvmem::register::{MountReport, RegisterError, RegistrationSet, diagnose};
use pyo3::prelude::*;

use crate::error;
use crate::long;
use crate::number::{Callback, Int, Seconds, Several};
use crate::options::{self, Threads, Words};
use crate::progress::{self, Listener};
use crate::report;
use crate::size::Size;

#[doc = doc!("doctor")]
#[pyfunction]
#[pyo3(signature = (
    size=Size(1 << 30), *, pages=None, nodes=None, shared=false, pinned=true, tier=None,
    tier_size=Size(1 << 30)
), text_signature = "(size='1GiB', *, pages=None, nodes=None, shared=False, pinned=True, \
    tier=None, tier_size='1GiB')")]
#[allow(clippy::too_many_arguments, reason = "keyword arguments")]
pub(crate) fn doctor<'py>(
    py: Python<'py>,
    size: Size,
    pages: Option<Words>,
    nodes: Option<Several<Int<'py>>>,
    shared: bool,
    pinned: bool,
    tier: Option<PathBuf>,
    tier_size: Size,
) -> PyResult<Bound<'py, PyAny>> {
    let nodes = nodes
        .map_or_else(Vec::new, |Several(all)| all)
        .into_iter()
        .map(|node| node.u32(py, "a node"));
    let nodes = nodes.collect::<PyResult<Vec<u32>>>()?;
    let requirements = Requirements::new(size.0, options::ladder(py, pages.as_ref(), false)?);
    let requirements = requirements.map_err(|error| error::bad_value(py, error))?;
    let requirements = requirements.shared(shared).pinned(pinned).nodes(nodes);
    let diagnosis = py.detach(|| {
        let mut diagnosis = diagnose(&requirements);
        if let Some(path) = &tier {
            diagnosis.report.add(kvmem_tier::preflight::checks(path, tier_size.0));
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
#[pyo3(signature = (
    size, *, pages=None, strict=false, numa=None, populate=Threads::auto(), devices=None,
    policy=None, chunk=None, time_budget=None, progress=None
), text_signature = "(size, *, pages=None, strict=False, numa=None, populate='auto', \
    devices=None, policy=None, chunk=None, time_budget=None, progress=None)")]
#[allow(clippy::too_many_arguments, reason = "keyword arguments")]
pub(crate) fn mount_report<'py>(
    py: Python<'py>,
    size: Size,
    pages: Option<Words>,
    strict: bool,
    numa: Option<&str>,
    populate: Option<Threads<'_>>,
    devices: Option<Words>,
    policy: Option<&str>,
    chunk: Option<Size>,
    time_budget: Option<Seconds<'_>>,
    progress: Option<Callback>,
) -> PyResult<Bound<'py, PyAny>> {
    let cancel = CancelToken::new();
    let populate = options::populate(py, "populate", populate)?;
    let limit = options::seconds(py, "time_budget", time_budget)?;
    let policy = options::policy(py, policy)?;
    let registrars = options::devices(py, devices.as_ref())?;
    let listener = progress.map(|Callback(callback)| {
        let populated = if populate == Populate::None { 0 } else { size.0 };
        Listener::new(
            callback,
            cancel.clone(),
            populated,
            size.0.saturating_mul(registrars.len() as u64),
        )
    });
    let mut builder = Region::builder(size.bytes())
        .ladder(options::ladder(py, pages.as_ref(), strict)?)
        .numa(options::numa(py, numa)?)
        .cancel(cancel.clone());
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
    if let Some(Size(bytes)) = chunk {
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

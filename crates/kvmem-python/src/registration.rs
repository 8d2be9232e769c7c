//! *Registration*: a region, registered with devices.

use std::sync::Arc;

use kvmem::arena::CancelToken;
use kvmem::register::{Key, RegistrationSet};
use pyo3::prelude::*;

use crate::collect::{Link, Plain, collected};
use crate::context::context_manager;
use crate::error;
use crate::holder::{Held, Holder};
use crate::keeper::Keeper;
use crate::long;
use crate::number::{Callback, Int, Seconds};
use crate::options::{self, Threads, Words};
use crate::progress::{self, Listener};
use crate::region::{PyRegion, part};
use crate::report::{self, Level};
use crate::size::Size;

impl Held for RegistrationSet {
    const NAME: &'static str = "registration";
    const SLOW: bool = true;
}

#[doc = doc!("Registration")]
#[pyclass(name = "Registration", module = "kvmem", frozen, weakref)]
pub(crate) struct PyRegistration {
    held: Holder<RegistrationSet>,
    region: Link<PyRegion>,
    keeper: Link<Keeper>,
}

impl Plain for RegistrationSet {}

collected!(PyRegistration { held, region, keeper }, |it, py| {
    it.region.cut(py);
    if it.held.clear(py) {
        it.keeper.cut(py);
    }
});

/// Converts a key to a named tuple.
pub(crate) fn key(py: Python<'_>, key: Key) -> PyResult<Bound<'_, PyAny>> {
    report::named(py, "Key", (key.handle, key.lkey, key.rkey))
}

#[pymethods]
impl PyRegistration {
    #[new]
    #[pyo3(signature = (
        region, devices, *, policy=None, populate=Threads::auto(), chunk=None, progress=None,
        time_budget=None
    ), text_signature = "(region, devices, *, policy=None, populate='auto', chunk=None, \
        progress=None, time_budget=None)")]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn create(
        py: Python<'_>,
        region: Bound<'_, PyRegion>,
        devices: Words,
        policy: Option<&str>,
        populate: Option<Threads<'_>>,
        chunk: Option<Size>,
        progress: Option<Callback>,
        time_budget: Option<Seconds<'_>>,
    ) -> PyResult<PyRegistration> {
        let memory = region.get().region(py)?;
        let registrars = options::devices(py, Some(&devices))?;
        let populate = options::populate(py, "populate", populate)?;
        let cancel = CancelToken::new();
        let (len, count) = (memory.len() as u64, registrars.len() as u64);
        let listener = progress.map(|Callback(callback)| {
            Listener::new(callback, cancel.clone(), len, len.saturating_mul(count))
        });
        let mut builder = RegistrationSet::builder()
            .registrars(registrars)
            .policy(options::policy(py, policy)?)
            .populate(populate)
            .cancel(cancel.clone());
        if let Some(Size(chunk)) = chunk {
            builder = builder.chunk_bytes(chunk);
        }
        if let Some(limit) = options::seconds(py, "time_budget", time_budget)? {
            builder = builder.time_budget(limit);
        }
        if let Some(listener) = listener.clone() {
            builder = builder.progress(move |progress| listener.register(&progress));
        }
        let set = long::run(py, &cancel, || builder.register(Arc::clone(&memory)));
        let set = set.and_then(|set| set.map_err(|error| error::register(py, &error)));
        let set = progress::end(py, listener.as_ref(), set)?;
        let outcome = set.outcome().to_string();
        let made = PyRegistration {
            held: Holder::new(set),
            region: Link::new(Some(region.unbind())),
            keeper: memory.link(py),
        };
        report::log(py, "register", Level::Info, || outcome)?;
        Ok(made)
    }

    #[doc = doc!("Registration.region")]
    #[getter]
    fn region(&self, py: Python<'_>) -> PyResult<Py<PyRegion>> {
        self.region
            .get(py)
            .ok_or_else(|| error::closed(RegistrationSet::NAME, RegistrationSet::END))
    }

    #[doc = doc!("Registration.devices")]
    #[getter]
    fn devices(&self) -> PyResult<Vec<String>> {
        self.held.with(|set| set.devices().map(str::to_owned).collect())
    }

    #[doc = doc!("Registration.outcome")]
    #[getter]
    fn outcome<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        report::report(py, &self.held.with(|set| set.outcome().clone())?)
    }

    #[doc = doc!("Registration.boundary")]
    #[getter]
    fn boundary(&self) -> PyResult<Option<u64>> {
        self.held.with(RegistrationSet::boundary_bytes)
    }

    #[doc = doc!("Registration.key_for")]
    #[pyo3(
        signature = (device, start=Int::usual(0), stop=None),
        text_signature = "($self, device, start=0, stop=None)"
    )]
    fn key_for<'py>(
        &self,
        py: Python<'py>,
        device: &str,
        start: Int<'_>,
        stop: Option<Int<'_>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let len = self.held.with(|set| set.region().len())?;
        let (start, stop) = part(py, len, start, stop)?;
        let found = self.held.with(|set| set.key_for(device, start..stop))?;
        key(py, found.map_err(|error| error::register(py, &error))?)
    }

    #[doc = doc!("Registration.close")]
    fn close(&self, py: Python<'_>) -> PyResult<usize> {
        let Some(mut set) = self.held.take_if_any()? else { return Ok(0) };
        let back = py.detach(move || set.deregister());
        // Keys that the device did not deregister keep the region, and the region keeps its bytes.
        self.keeper.cut(py);
        Ok(back.map_err(|error| error::register(py, &error))?.keys)
    }

    #[doc = doc!("Registration.closed")]
    #[getter]
    fn closed(&self) -> bool {
        self.held.is_gone()
    }

    fn __repr__(&self) -> String {
        match self
            .held
            .with(|set| (set.region().len(), set.devices().collect::<Vec<_>>().join(", ")))
        {
            Ok((len, devices)) => format!("<kvmem.Registration of {len} bytes with {devices}>"),
            Err(_) => "<kvmem.Registration, closed>".to_owned(),
        }
    }
}

context_manager!(PyRegistration, |it, py| it.close(py).map(drop));

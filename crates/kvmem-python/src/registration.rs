//! *Registration*: a region, registered with devices.

use std::sync::Arc;

use kvmem::arena::CancelToken;
use kvmem::register::{Key, RegistrationSet};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::collect::{Link, Plain, collected};
use crate::context::context_manager;
use crate::error;
use crate::holder::{Held, Holder};
use crate::keeper::Keeper;
use crate::keywords::Keywords;
use crate::long;
use crate::number::{Callback, Int, plain};
use crate::options::{self, Words};
use crate::progress::{self, Listener};
use crate::region::{PyRegion, part};
use crate::report::{self, Level};

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
    #[pyo3(
        signature = (region, devices, **options),
        text_signature = "(region, devices, *, policy=None, populate='auto', chunk=None, \
            progress=None, time_budget=None)"
    )]
    fn create(
        py: Python<'_>,
        region: Bound<'_, PyRegion>,
        devices: Words,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<PyRegistration> {
        let options = Keywords::new(py, "Registration", options);
        let memory = region.get().region(py)?;
        let registrars = options::devices(py, Some(&devices))?;
        let cancel = CancelToken::new();
        let (len, count) = (memory.len() as u64, registrars.len() as u64);
        let mut builder = RegistrationSet::builder()
            .registrars(registrars)
            .policy(options::policy(py, options.text("policy")?.as_deref())?)
            .populate(options.populate()?)
            .cancel(cancel.clone());
        if let Some(chunk) = options.bytes("chunk")? {
            builder = builder.chunk_bytes(chunk);
        }
        if let Some(limit) = options.seconds("time_budget")? {
            builder = builder.time_budget(limit);
        }
        let progress = options.take("progress")?;
        options.end()?;
        let listener = progress.map(|Callback(callback)| {
            Listener::new(callback, cancel.clone(), len, len.saturating_mul(count))
        });
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
        #[pyo3(from_py_with = plain)] device: &str,
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

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

/// The registration of a region with devices. Registering either succeeds for the whole region
/// and all devices, or raises and leaves nothing registered.
///
/// Options:
///
/// - ``region``: the memory. The registration keeps it alive.
/// - ``devices``: one or more of ``io_uring``, ``io_uring:N``, ``mlock``, ``verbs``,
///   ``verbs:NIC``, ``cuda``, ``cuda:N``, ``nixl`` and ``nixl:BACKEND``.
/// - ``policy``: ``auto``, ``sequential``, ``parallel`` or ``parallel:N``. None takes the policy
///   from the environment, and ``auto`` if it names none.
/// - ``populate``: make pages resident before they are registered: ``"auto"`` or a number of
///   threads. With None the first device faults them in, on one thread.
/// - ``chunk``: maximum number of bytes that one key covers. None chooses by the devices' limits;
///   a GPU, which copies by address, gets one key for the whole region then. Copies must not cross
///   an edge between two keys.
/// - ``progress``: called with ``(done, total)`` in bytes. Each byte counts once when it is
///   resident and once for every device that it is registered with.
/// - ``time_budget``: seconds that the whole operation may take.
///
/// Raises :class:`NotAvailableError`, :class:`RegistrationError`, :class:`MappingError`,
/// :class:`InvalidArgumentError`, :class:`CancelledError` and :class:`TimeBudgetError`.
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

    /// Registered region.
    #[getter]
    fn region(&self, py: Python<'_>) -> PyResult<Py<PyRegion>> {
        self.region
            .get(py)
            .ok_or_else(|| error::closed(RegistrationSet::NAME, RegistrationSet::END))
    }

    /// Names of the devices, in order.
    #[getter]
    fn devices(&self) -> PyResult<Vec<String>> {
        self.held.with(|set| set.devices().map(str::to_owned).collect())
    }

    /// Result of registering: keys, times, and the choices made with the measurements behind
    /// them.
    #[getter]
    fn outcome<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        report::report(py, &self.held.with(|set| set.outcome().clone())?)
    }

    /// Length of the chunks in bytes. A range that crosses no multiple of it has one key with
    /// each device. None: one key covers the whole region.
    #[getter]
    fn boundary(&self) -> PyResult<Option<u64>> {
        self.held.with(RegistrationSet::boundary_bytes)
    }

    /// Returns the key with which a device reaches a whole range. Raises
    /// :class:`RegistrationError` if the range crosses a boundary between two keys.
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

    /// Deregisters all keys and returns their number. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<usize> {
        let Some(mut set) = self.held.take_if_any()? else { return Ok(0) };
        let back = py.detach(move || set.deregister());
        // Keys that the device did not deregister keep the region, and the region keeps its bytes.
        self.keeper.cut(py);
        Ok(back.map_err(|error| error::register(py, &error))?.keys)
    }

    /// Whether the keys have been deregistered.
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

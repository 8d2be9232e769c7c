//! *Fetching*: values that are being fetched from the lower tier.
//!
//! A thread that waits registers a *waker* with the fetches, and sleeps without the GIL. An event
//! loop registers a function instead, which schedules the task that awaits: no thread waits. The
//! thread that ends a fetch takes the function and calls it. Until then the waker owns it, and the
//! collector does not see it: a function that the collector is clearing must not be called, and a
//! thread cannot tell. A cycle through the function is therefore freed after the fetch has ended,
//! which it always does.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use kvmem::cache::{Fetching, Pinned};
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::cache_key::OwnedKey;
use crate::collect::{Link, Plain, collected};
use crate::holder::{Held, Holder, drop_value};
use crate::interrupt::{SIGNAL_INTERVAL, evicting};
use crate::kv_cache::{PyKvCache, owned_keys};
use crate::number::Seconds;
use crate::pinned::PyPinned;
use crate::{options, process};

/// The values of keys, by their places.
type Values = Vec<Option<Pinned<OwnedKey>>>;

/// Fetches that are in flight or done.
pub(crate) struct InFlight {
    fetching: Fetching<OwnedKey>,
    /// The values, once a poll has taken them.
    values: Option<Values>,
}

impl InFlight {
    fn is_done(&self) -> bool {
        self.values.is_some() || self.fetching.is_done()
    }

    /// Returns whether all are done. Otherwise `waker` is called when that may be so.
    fn poll(&mut self, waker: &Waker) -> bool {
        if self.values.is_none()
            && let Poll::Ready(values) =
                Pin::new(&mut self.fetching).poll(&mut Context::from_waker(waker))
        {
            self.values = Some(values);
        }
        self.values.is_some()
    }

    fn into_values(self) -> Values {
        self.values.unwrap_or_else(|| self.fetching.into_values())
    }
}

impl Held for InFlight {
    const NAME: &'static str = "fetch";
    const END: &'static str = "cancelled, or its result taken";
    // It refers to the cache, which refers to the pool.
    const SLOW: bool = true;
}

/// Wakes a thread.
#[derive(Default)]
struct Alarm {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Alarm {
    /// Waits until it has rung since the last time, for `timeout` at most.
    fn wait(&self, timeout: Duration) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(rung, timeout, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

/// Calls a function of Python.
struct Notice {
    callback: Mutex<Option<Py<PyAny>>>,
}

impl Notice {
    /// Sets the function, and returns the one before. Its owner drops it, which runs Python.
    fn replace(&self, callback: Option<Py<PyAny>>) -> Option<Py<PyAny>> {
        let mut place = self.callback.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut place, callback)
    }
}

impl Wake for Notice {
    fn wake(self: Arc<Self>) {
        // Nobody awaits any more when the interpreter is ending.
        process::call(|py| {
            let Some(callback) = self.replace(None) else { return };
            if let Err(error) = callback.call0(py) {
                error.write_unraisable(py, Some(callback.bind(py)));
            }
        });
    }
}

// The head of the module says why the collector does not see the function.
impl Plain for Arc<Notice> {}

#[doc = doc!("Fetching")]
#[pyclass(name = "Fetching", module = "kvmem", frozen, weakref)]
pub(crate) struct PyFetching {
    held: Holder<InFlight>,
    /// Its object has the tiers of Python that are asked.
    cache: Link<PyKvCache>,
    notice: Arc<Notice>,
}

impl Plain for InFlight {}

collected!(PyFetching { held, cache, notice }, |it, py| {
    it.cache.cut(py);
});

impl PyFetching {
    pub(crate) fn new(cache: &Bound<'_, PyKvCache>, fetching: Fetching<OwnedKey>) -> PyFetching {
        PyFetching {
            held: Holder::new(InFlight { fetching, values: None }),
            cache: Link::new(Some(cache.clone().unbind())),
            notice: Arc::new(Notice { callback: Mutex::new(None) }),
        }
    }

    /// Takes the values that are there.
    fn values(&self, py: Python<'_>) -> PyResult<Vec<Option<PyPinned>>> {
        let taken = self.held.take()?;
        let values = py.detach(|| taken.into_values());
        Ok(values.into_iter().map(|value| value.map(PyPinned::new)).collect())
    }
}

#[pymethods]
impl PyFetching {
    #[doc = doc!("Fetching.done")]
    fn done(&self) -> PyResult<bool> {
        if self.held.is_gone() { Ok(true) } else { self.held.with(InFlight::is_done) }
    }

    #[doc = doc!("Fetching.result")]
    #[pyo3(signature = (timeout=None))]
    fn result(
        &self,
        py: Python<'_>,
        timeout: Option<Seconds<'_>>,
    ) -> PyResult<Vec<Option<PyPinned>>> {
        let begin = Instant::now();
        let timeout = options::seconds(py, "timeout", timeout)?;
        let alarm = Arc::new(Alarm::default());
        let waker = Waker::from(Arc::clone(&alarm));
        while !self.held.change(|fetches| fetches.poll(&waker))? {
            let left = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                let seconds = timeout.unwrap_or_default().as_secs_f64();
                return Err(PyTimeoutError::new_err(format!(
                    "the values were not all fetched within {seconds} s: wait longer, or take \
                     those that are there"
                )));
            }
            let turn = left.map_or(SIGNAL_INTERVAL, |left| left.min(SIGNAL_INTERVAL));
            py.detach(|| alarm.wait(turn));
            py.check_signals()?;
        }
        self.values(py)
    }

    #[doc = doc!("Fetching.take")]
    fn take(&self, py: Python<'_>) -> PyResult<Vec<Option<PyPinned>>> {
        self.values(py)
    }

    #[doc = doc!("Fetching.cancel")]
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        drop_value(py, self.held.take_if_any()?);
        Ok(())
    }

    #[doc = doc!("Fetching.detach")]
    fn detach(&self, py: Python<'_>) -> PyResult<()> {
        if let Some(fetches) = self.held.take_if_any()? {
            py.detach(|| fetches.fetching.detach());
        }
        Ok(())
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let wait = slf.py().import("kvmem._fetching")?.getattr("wait")?;
        wait.call1((slf,))?.call_method0("__await__")
    }

    #[doc = doc!("Fetching._poll")]
    fn _poll(&self, py: Python<'_>, callback: Bound<'_, PyAny>) -> PyResult<bool> {
        let other = self.notice.replace(None);
        if let Some(other) = other.filter(|other| !other.bind(py).is(&callback)) {
            self.notice.replace(Some(other));
            return Err(PyRuntimeError::new_err(
                "the fetch is being awaited already: await it once, and share the result",
            ));
        }
        self.notice.replace(Some(callback.unbind()));
        let waker = Waker::from(Arc::clone(&self.notice));
        let done = self.held.change(|fetches| fetches.poll(&waker));
        if !matches!(done, Ok(false)) {
            self.notice.replace(None);
        }
        done
    }

    #[doc = doc!("Fetching._forget")]
    fn _forget(&self) {
        self.notice.replace(None);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, py: Python<'_>, _exc: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.cancel(py)
    }

    fn __repr__(&self) -> &'static str {
        match self.held.with(InFlight::is_done) {
            Ok(true) => "<kvmem.Fetching, done>",
            Ok(false) => "<kvmem.Fetching>",
            Err(_) => "<kvmem.Fetching, ended>",
        }
    }
}

#[pymethods]
impl PyKvCache {
    #[doc = doc!("KvCache.start_fetch")]
    fn start_fetch<'py>(slf: &Bound<'py, Self>, keys: &Bound<'py, PyAny>) -> PyResult<PyFetching> {
        let (this, py) = (slf.get(), slf.py());
        let (keys, cache) = (owned_keys(keys)?, this.cache()?);
        let fetching = evicting(|| py.detach(|| cache.start_fetch(&keys)))?;
        Ok(PyFetching::new(slf, fetching))
    }
}

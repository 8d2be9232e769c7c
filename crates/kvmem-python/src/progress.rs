//! *Progress*: reports progress to a callable: `callback(done, total)`, in bytes.
//!
//! Working threads call it, one at a time, with the GIL. Populating comes first and registering
//! next. Both count, registering once for each device, so `done` rises from 0 to `total` once and
//! never falls. If the callable raises, the work is cancelled, and the caller of the work gets the
//! exception. In the background, where no caller waits, the exception goes to `sys.unraisablehook`.
//!
//! After the last report the callable is released: it may refer to the object that it reports on,
//! which refers to the callable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use kvmem::arena::{CancelToken, Progress};
use kvmem::register::{Phase, RegisterProgress};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::collect::Traverse;
use crate::process;

/// A listener and its state.
#[derive(Clone)]
pub(crate) struct Listener(Arc<ListenerState>);

struct ListenerState {
    callback: Mutex<Option<Py<PyAny>>>,
    cancel: CancelToken,
    meter: Mutex<Meter>,
    raised: Mutex<Option<PyErr>>,
}

/// Several counts combined into one.
struct Meter {
    total: u64,
    populate: Count,
    register: Count,
    /// Whether the last part that began to be populated is not populated yet.
    is_populating: bool,
    reported: Option<u64>,
}

/// A count that restarts for the next part.
#[derive(Default)]
struct Count {
    before: u64,
    last: u64,
    max: u64,
}

impl Count {
    /// Within a part every report is at least as high as the previous one.
    fn set(&mut self, done: u64) {
        if done <= self.last {
            self.before += self.last;
        }
        self.last = done;
    }

    fn done(&self) -> u64 {
        (self.before + self.last).min(self.max)
    }
}

impl Meter {
    fn new(populate: u64, register: u64) -> Meter {
        let count = |max| Count { max, ..Count::default() };
        Meter {
            total: populate + register,
            populate: count(populate),
            register: count(register),
            is_populating: false,
            reported: None,
        }
    }

    /// Returns the numbers to report, if they are new.
    fn step(&mut self, phase: Phase, done: u64, total: u64) -> Option<(u64, u64)> {
        match phase {
            Phase::Populate => {
                self.populate.set(done);
                self.is_populating = done < total;
            }
            Phase::Register => {
                // Pages that were resident before are not populated.
                if !self.is_populating {
                    self.populate.before = self.populate.max;
                }
                self.register.set(done);
            }
            Phase::Deregister => return None,
        }
        self.advance(self.populate.done() + self.register.done())
    }

    /// Returns the numbers of completed work.
    fn last(&mut self) -> Option<(u64, u64)> {
        self.advance(self.total)
    }

    fn advance(&mut self, done: u64) -> Option<(u64, u64)> {
        let done = done.min(self.total);
        if self.reported.is_some_and(|reported| done <= reported) {
            return None;
        }
        self.reported = Some(done);
        Some((done, self.total))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Traverse for Listener {
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.0.callback.try_lock() {
            Ok(callback) => visit.call(&*callback),
            Err(TryLockError::Poisoned(callback)) => visit.call(&*callback.into_inner()),
            // The lock is only held together with the GIL, and no Python runs under it.
            Err(TryLockError::WouldBlock) => Ok(()),
        }
    }
}

impl Listener {
    /// Makes a listener for populating `populate` bytes and registering `register` bytes.
    pub(crate) fn new(
        callback: Py<PyAny>,
        cancel: CancelToken,
        populate: u64,
        register: u64,
    ) -> Listener {
        let meter = Mutex::new(Meter::new(populate, register));
        let callback = Mutex::new(Some(callback));
        Listener(Arc::new(ListenerState { callback, cancel, meter, raised: Mutex::new(None) }))
    }

    pub(crate) fn populate(&self, progress: &Progress) {
        self.step(Phase::Populate, progress.done_bytes, progress.total_bytes);
    }

    pub(crate) fn register(&self, progress: &RegisterProgress) {
        self.step(progress.phase, progress.done_bytes, progress.total_bytes);
    }

    /// Reports work that has one part, whose bytes were given for populating.
    pub(crate) fn done(&self, bytes: u64) {
        self.step(Phase::Populate, bytes, bytes);
    }

    fn step(&self, phase: Phase, done: u64, total: u64) {
        let step = lock(&self.0.meter).step(phase, done, total);
        if let Some((done, total)) = step
            && !self.0.cancel.is_cancelled()
        {
            process::call(|py| self.call(py, done, total));
        }
    }

    fn call(&self, py: Python<'_>, done: u64, total: u64) {
        // Called without the lock, because the callable runs Python.
        let callback = lock(&self.0.callback).as_ref().map(|callback| callback.clone_ref(py));
        let Some(callback) = callback else { return };
        if let Err(error) = callback.call1(py, (done, total)) {
            self.0.cancel.cancel();
            lock(&self.0.raised).get_or_insert(error);
            self.release(py);
        } else if done == total {
            self.release(py);
        }
    }

    /// Drops the callable.
    pub(crate) fn release(&self, _py: Python<'_>) {
        let callback = lock(&self.0.callback).take();
        drop(callback);
    }

    /// Ends the work: returns the exception that the callback raised, or else the result. After
    /// success the last call reports that everything is done.
    pub(crate) fn end<T>(&self, py: Python<'_>, result: PyResult<T>) -> PyResult<T> {
        if result.is_ok() {
            let last = lock(&self.0.meter).last();
            if let Some((done, total)) = last {
                self.call(py, done, total);
            }
        }
        self.release(py);
        let raised = lock(&self.0.raised).take();
        raised.map_or(result, Err)
    }

    /// Reports populating in the background. An exception goes to `sys.unraisablehook`.
    pub(crate) fn populate_unwaited(&self, progress: &Progress) {
        self.populate(progress);
        self.report();
    }

    /// Reports registering in the background. An exception goes to `sys.unraisablehook`.
    pub(crate) fn register_unwaited(&self, progress: &RegisterProgress) {
        self.register(progress);
        self.report();
    }

    fn report(&self) {
        let raised = lock(&self.0.raised).take();
        if let Some(error) = raised {
            process::call(|py| error.write_unraisable(py, None));
        }
    }
}

/// Ends work with or without a listener.
pub(crate) fn end<T>(
    py: Python<'_>,
    listener: Option<&Listener>,
    result: PyResult<T>,
) -> PyResult<T> {
    match listener {
        Some(listener) => listener.end(py, result),
        None => result,
    }
}

//! *Long*: long work without the GIL, which Ctrl-C can cancel.
//!
//! A separate thread does the work. The calling thread waits and checks for signals at intervals. A
//! signal handler may raise (`KeyboardInterrupt` does). That cancels the work; the exception is
//! raised when the work has ended.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use kvmem::arena::CancelToken;
use pyo3::prelude::*;

const LOOK: Duration = Duration::from_millis(20);

/// Reports that the work has ended, also if it panics.
struct End<'a>(&'a Mutex<bool>, &'a Condvar);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.1.notify_all();
    }
}

/// Runs `work` without the GIL. `cancel` cancels it.
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    cancel: &CancelToken,
    work: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    let (ended, changed) = (Mutex::new(false), Condvar::new());
    thread::scope(|scope| {
        let named = thread::Builder::new().name("kvmem-work".to_owned());
        let worker = named.spawn_scoped(scope, || {
            let _end = End(&ended, &changed);
            work()
        })?;
        let mut raised = None;
        let wait = || {
            let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
            *changed
                .wait_timeout_while(ended, LOOK, |ended| !*ended)
                .unwrap_or_else(PoisonError::into_inner)
                .0
        };
        while !py.detach(wait) {
            if raised.is_none()
                && let Err(error) = py.check_signals()
            {
                cancel.cancel();
                raised = Some(error);
            }
        }
        match (raised, py.detach(|| worker.join())) {
            (Some(error), _) => Err(error),
            (None, Ok(result)) => Ok(result),
            (None, Err(panic)) => std::panic::resume_unwind(panic),
        }
    })
}

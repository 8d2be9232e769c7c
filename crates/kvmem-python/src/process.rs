//! *Process*: what a fork and the end of the interpreter mean here.
//!
//! **Fork.** A child has no memory at the addresses of its parent's regions (they are kept out of
//! it), its copies of locks may be held by threads that it does not have, and rings that it
//! inherits are its parent's. So everything that has to do with memory is of an *age*: that
//! of the process in which it was made. A fork makes the child one older, and what is of another
//! age is refused, and forgotten instead of dropped. Allocators of offsets have no memory, and
//! their locks are never held while another thread can fork, since that needs the GIL; they
//! go on in the child, as copies.
//!
//! **Subinterpreters.** There is one interpreter for each process that can have the module: its
//! types and the thread-bound parts of PyO3 are shared by all interpreters. Another one is refused.
//!
//! **End.** Threads that work in the background call into Python to tell how far they have come. A
//! thread that asks for the GIL when the interpreter is ending never gets it, or is ended. So
//! before that, at exit, calls are closed: those under way are waited for, and no further one
//! begins.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

static AGE: AtomicU32 = AtomicU32::new(0);
static CLOSED: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// How many forks there are between this process and the one that imported the module first.
pub(crate) fn age() -> u32 {
    // Relaxed: it changes only in a process with one thread.
    AGE.load(Ordering::Relaxed)
}

/// Runs a call into Python from a thread of this library, unless the interpreter is ending.
pub(crate) fn call<T>(call: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    struct Under;
    impl Drop for Under {
        fn drop(&mut self) {
            // Release pairs with the Acquire in `close`.
            CALLS.fetch_sub(1, Ordering::Release);
        }
    }
    // SeqCst, both here and in `close`: either this sees that calls are closed, or `close` sees the
    // call.
    CALLS.fetch_add(1, Ordering::SeqCst);
    let _under = Under;
    if CLOSED.load(Ordering::SeqCst) { None } else { Python::try_attach(call) }
}

/// No further call begins, and none is under way.
#[pyfunction]
pub(crate) fn _at_exit(py: Python<'_>) {
    CLOSED.store(true, Ordering::SeqCst);
    py.detach(|| {
        // Acquire pairs with the Release in `call`; SeqCst for the order with the store above.
        while CALLS.load(Ordering::SeqCst) > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// This process has been forked off.
#[pyfunction]
pub(crate) fn _after_fork() {
    // Relaxed: the child has one thread.
    AGE.fetch_add(1, Ordering::Relaxed);
    // Calls that were under way are those of threads that are not there.
    CALLS.store(0, Ordering::Relaxed);
}

/// Refuses all interpreters but the first.
fn admit() -> PyResult<()> {
    static FIRST: AtomicI64 = AtomicI64::new(-1);
    // SAFETY: a thread that imports a module is attached to its interpreter.
    let here = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    // Relaxed, both: nothing is published with it.
    match FIRST.compare_exchange(-1, here, Ordering::Relaxed, Ordering::Relaxed) {
        Err(first) if first != here => Err(PyImportError::new_err(
            "kvmem cannot be used in more than one interpreter of a process: use it in the main interpreter alone, or in processes \
             that share a pool",
        )),
        _ => Ok(()),
    }
}

/// Sees to it that forks and the end are known of, and that this is the only interpreter.
pub(crate) fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    admit()?;
    let py = module.py();
    let after_fork = wrap_pyfunction!(_after_fork, module)?;
    let arguments = pyo3::types::PyDict::new(py);
    arguments.set_item("after_in_child", after_fork)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&arguments))?;
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(_at_exit, module)?,))?;
    Ok(())
}

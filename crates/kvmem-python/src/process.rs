//! *Process*: forks, subinterpreters, and the end of the interpreter.
//!
//! **Fork.** A child has no memory at the addresses of its parent's regions, which are left out of
//! it. Its copies of locks may be held by threads that it does not have, and inherited rings belong
//! to its parent. Therefore every object with memory has the *age* of the process that made it. A
//! fork makes the child one older. Using an object of another age fails, and such an object is
//! leaked instead of dropped. Offset allocators have no memory, and their locks are never held
//! while another thread can fork, because that needs the GIL. They continue in the child, as
//! copies.
//!
//! **Subinterpreters.** Only one interpreter of a process can import the module: its types and the
//! thread-bound parts of PyO3 are shared by all interpreters. In another interpreter the import
//! fails.
//!
//! **End.** Background threads call into Python to report progress. A thread that requests the GIL
//! while the interpreter is ending never gets it, or is ended. Therefore calls are closed before
//! that, at exit: running calls are waited for, and no further call begins.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

static AGE: AtomicU32 = AtomicU32::new(0);
static CLOSED: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Number of forks between this process and the one that first imported the module.
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
    // SeqCst, here and in `close`: either this load sees that calls are closed, or `close` sees the
    // call.
    CALLS.fetch_add(1, Ordering::SeqCst);
    let _under = Under;
    if CLOSED.load(Ordering::SeqCst) { None } else { Python::try_attach(call) }
}

/// Closes the calls: no further call begins, and none is running when this returns.
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

/// Adjusts the state in a forked child.
#[pyfunction]
pub(crate) fn _after_fork() {
    // Relaxed: the child has one thread.
    AGE.fetch_add(1, Ordering::Relaxed);
    // Running calls belonged to threads that do not exist in the child.
    CALLS.store(0, Ordering::Relaxed);
}

/// Fails in all interpreters but the first.
fn admit() -> PyResult<()> {
    static FIRST: AtomicI64 = AtomicI64::new(-1);
    // SAFETY: both calls require an attached thread, and a thread that imports a module is attached
    // to its interpreter, which stays alive during the import.
    let here = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    // Relaxed, both: they publish nothing.
    match FIRST.compare_exchange(-1, here, Ordering::Relaxed, Ordering::Relaxed) {
        Err(first) if first != here => Err(PyImportError::new_err(
            "kvmem cannot be used in more than one interpreter of a process: use it in the main \
             interpreter only, or in processes that share a pool",
        )),
        _ => Ok(()),
    }
}

/// Registers the handlers of forks and of the end, and checks that this is the only interpreter.
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

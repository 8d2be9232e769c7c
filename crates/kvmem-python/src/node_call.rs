//! *Node call*: a call of a node runs in the caller's thread, without the GIL.
//!
//! Most calls take some tens of microseconds, so none has a thread of its own. A call that waits,
//! for events or for a server that starts again, looks for signals some 20 times a second. A signal
//! handler that raises ends it.
//!
//! The look takes the GIL while the library holds its lock of the connection. Therefore no thread
//! may wait for that lock with the GIL: clients, pins and reservations are dropped without it
//! ([`Held::SLOW`](crate::holder::Held::SLOW)), and everything else goes through [`call`].

use std::cell::RefCell;

use kvmem_node::{ClientError, Interrupt, NodeClient};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::holder::Lent;
use crate::node_error::node_error;
use crate::process;

thread_local! {
    /// What a signal handler has raised in this thread, during a call.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// What the library asks in a thread that waits.
pub(crate) const INTERRUPT: Interrupt = Interrupt(is_interrupted);

/// Returns whether a signal handler has raised.
fn is_interrupted() -> bool {
    match process::call(|py| py.check_signals()) {
        Some(Err(error)) => {
            RAISED.set(Some(error));
            true
        }
        Some(Ok(())) | None => false,
    }
}

/// Runs a call of the library without the GIL.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    run: impl FnOnce() -> Result<T, ClientError> + Send,
) -> PyResult<T> {
    py.detach(run).map_err(|error| match error {
        ClientError::Interrupted => {
            RAISED.take().unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))
        }
        error => node_error(py, &error),
    })
}

/// Runs a call of a client without the GIL.
pub(crate) fn call<T: Send>(
    py: Python<'_>,
    client: &Lent<NodeClient>,
    run: impl FnOnce(&NodeClient) -> Result<T, ClientError> + Send,
) -> PyResult<T> {
    let client: &NodeClient = client;
    detached(py, || run(client))
}

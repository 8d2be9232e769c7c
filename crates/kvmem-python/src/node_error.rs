//! *Node errors*: converts errors of a node's clients to Python exceptions.

use kvmem_node::{CallError, ClientError, Quota};
use pyo3::prelude::*;

use crate::error::{self, Raised};

/// Converts an error of a client.
#[cold]
pub(crate) fn node_error(py: Python<'_>, error: &ClientError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match error {
        ClientError::Call(error) => return call_error(py, error),
        ClientError::Memory(error) => return error::arena(py, error),
        ClientError::Register(error) => return error::register(py, error),
        ClientError::Forked => return error::forked("node cache"),
        ClientError::Disconnected { path, waited_ms, error } => raised("NodeDisconnectedError")
            .with("path", path)
            .with("seconds", *waited_ms as f64 / 1000.0)
            .with("errno", error.raw_os_error())
            .with("remedy", "start the server, or give the path of its socket"),
        ClientError::SocketNotAllowed { path, own, error } => raised("NodePermissionError")
            .with("value", *own)
            .with("path", path.as_str())
            .with("errno", error.raw_os_error())
            .with("remedy", "start the server with options that allow it"),
        ClientError::ForeignServer { path, uid, .. } => raised("NodePermissionError")
            .with("path", path)
            .with("value", *uid)
            .with("remedy", "connect to another path, or name the user in server_users"),
        ClientError::ReservationLost => {
            raised("ReservationLostError").with("remedy", "reserve again")
        }
        ClientError::PinsRevoked => {
            raised("PinRevokedError").with("remedy", "acquire the value again")
        }
        ClientError::MemoryReplaced => raised("NodeReplacedError").with("remedy", "connect again"),
        ClientError::TooLong { len, at, capacity } => raised("InvalidArgumentError")
            .with("value", *at as u128 + *len as u128)
            .with("limit", *capacity),
        ClientError::Damaged { got, expected } => {
            raised("DamagedValueError").with("value", *got).with("expected", *expected)
        }
        ClientError::Unverified => {
            raised("UnverifiedValueError").with("remedy", "connect the writers with checksums=True")
        }
        _ => raised("NodeError"),
    }
    .err()
}

/// Converts the reason why the server did not do what was requested.
fn call_error(py: Python<'_>, error: &CallError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match error {
        CallError::OutOfSpace { requested, free, largest } => raised("OutOfSpaceError")
            .with("requested", *requested)
            .with("free", *free)
            .with("largest_free", *largest),
        CallError::BadLength { requested: 0, .. } => {
            raised("InvalidArgumentError").with("value", 0).with("limit", 1)
        }
        CallError::BadLength { requested, limit } => {
            raised("OutOfSpaceError").with("requested", *requested).with("limit", *limit)
        }
        CallError::BadKey { len, limit } => raised("InvalidArgumentError")
            .with("value", *len)
            .with("limit", if *len == 0 { 1 } else { *limit }),
        CallError::Twice { index } => raised("InvalidArgumentError").with("value", *index),
        CallError::BatchTooLong { len, limit } => {
            raised("InvalidArgumentError").with("value", *len).with("limit", *limit)
        }
        CallError::BadSize { requested, max, .. } => raised("InvalidArgumentError")
            .with("value", *requested)
            .with("limit", *max)
            .with("remedy", "start the server again with a larger --max"),
        CallError::BadNamespace { len, limit } => {
            raised("InvalidArgumentError").with("value", *len).with("limit", *limit)
        }
        CallError::Stale { .. } | CallError::Fenced => raised("ReservationLostError"),
        CallError::Quota { what, value, limit } => match what {
            Quota::NamespaceBytes | Quota::SessionReserved => {
                raised("OutOfSpaceError").with("requested", *value).with("limit", *limit)
            }
            _ => raised("NodeError").with("value", *value).with("limit", *limit),
        },
        CallError::ReadOnly => {
            let message = "the node was connected with read_only=True: connect without it to write";
            Raised::new(py, "InvalidArgumentError", message)
        }
        CallError::NotAllowed { uid, .. }
        | CallError::NamespaceNotAllowed { uid, .. }
        | CallError::OnlyReads { uid, .. } => raised("NodePermissionError")
            .with("value", *uid)
            .with("remedy", "start the server with options that allow it"),
        CallError::Version { version, known } => raised("NodeError")
            .with("value", *version)
            .with("limit", *known)
            .with("remedy", "install the release of the server"),
        CallError::TooMany { limit, .. } => raised("NodeError").with("limit", *limit),
        CallError::Undecodable { len } => raised("NodeError").with("value", *len),
        _ => raised("NodeError"),
    }
    .err()
}

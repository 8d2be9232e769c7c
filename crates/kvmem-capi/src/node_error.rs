//! *Errors* of a node: how its client's errors become statuses.

use kvmem_node::{CallError as ServerError, ClientError};

use crate::error::{CallError, arena_status};
use crate::status::*;

/// Returns the status of a call that the server did not do.
fn server_status(error: &ServerError) -> kvmem_status {
    match error {
        ServerError::OutOfSpace { .. } => KVMEM_ERR_OUT_OF_SPACE,
        ServerError::BadLength { requested: 0, .. } => KVMEM_ERR_ZERO_SIZE,
        ServerError::BadLength { .. } => KVMEM_ERR_TOO_LARGE,
        ServerError::BadKey { .. }
        | ServerError::Twice { .. }
        | ServerError::BatchTooLong { .. }
        | ServerError::BadNamespace { .. }
        | ServerError::BadSize { .. } => KVMEM_ERR_INVALID_ARGUMENT,
        ServerError::Stale { .. } => KVMEM_ERR_STALE_ALLOCATION,
        ServerError::Fenced => KVMEM_ERR_FENCED,
        ServerError::Quota { .. } | ServerError::TooMany { .. } | ServerError::Unwatched { .. } => {
            KVMEM_ERR_LIMIT
        }
        ServerError::ReadOnly => KVMEM_ERR_READ_ONLY,
        ServerError::NotAllowed { .. }
        | ServerError::NamespaceNotAllowed { .. }
        | ServerError::OnlyReads { .. } => KVMEM_ERR_PERMISSION,
        ServerError::NotOperator | ServerError::NamespaceInTier => KVMEM_ERR_UNSUPPORTED,
        _ => KVMEM_ERR_PROTOCOL,
    }
}

impl From<ClientError> for CallError {
    fn from(error: ClientError) -> CallError {
        let error = match error {
            ClientError::Register(error) => return (*error).into(),
            error => error,
        };
        let status = match &error {
            ClientError::Call(error) => server_status(error),
            ClientError::Disconnected { .. } => KVMEM_ERR_DISCONNECTED,
            ClientError::SocketNotAllowed { .. } | ClientError::ForeignServer { .. } => {
                KVMEM_ERR_PERMISSION
            }
            ClientError::MemoryReplaced => KVMEM_ERR_MEMORY_REPLACED,
            ClientError::Memory(error) => arena_status(error),
            ClientError::Forked => KVMEM_ERR_FORKED,
            ClientError::Interrupted => KVMEM_ERR_CANCELLED,
            ClientError::TooLong { .. } => KVMEM_ERR_OUT_OF_BOUNDS,
            ClientError::ForeignReservation { .. } => KVMEM_ERR_FOREIGN_ALLOCATION,
            ClientError::ReservationLost | ClientError::PinsRevoked => KVMEM_ERR_STALE_ALLOCATION,
            ClientError::Damaged { .. } => KVMEM_ERR_DAMAGED,
            ClientError::Unverified => KVMEM_ERR_UNSUPPORTED,
            _ => KVMEM_ERR_PROTOCOL,
        };
        CallError::new(status, error)
    }
}

#[cfg(test)]
mod tests {
    use kvmem_node::{Quota, TooMany};

    use super::*;

    #[test]
    fn each_error_has_its_status_and_keeps_its_text() {
        let of_server = [
            (ServerError::OutOfSpace { requested: 9, free: 8, largest: 7 }, KVMEM_ERR_OUT_OF_SPACE),
            (ServerError::BadLength { requested: 0, limit: 9 }, KVMEM_ERR_ZERO_SIZE),
            (ServerError::BadLength { requested: 10, limit: 9 }, KVMEM_ERR_TOO_LARGE),
            (ServerError::BadKey { len: 65, limit: 64 }, KVMEM_ERR_INVALID_ARGUMENT),
            (ServerError::Twice { index: 3 }, KVMEM_ERR_INVALID_ARGUMENT),
            (ServerError::BatchTooLong { len: 9, limit: 8 }, KVMEM_ERR_INVALID_ARGUMENT),
            (ServerError::BadNamespace { len: 99, limit: 64 }, KVMEM_ERR_INVALID_ARGUMENT),
            (ServerError::BadSize { requested: 9, min: 1, max: 8 }, KVMEM_ERR_INVALID_ARGUMENT),
            (ServerError::Stale { slot: 1, generation: 2 }, KVMEM_ERR_STALE_ALLOCATION),
            (ServerError::Fenced, KVMEM_ERR_FENCED),
            (
                ServerError::Quota { what: Quota::NamespacePins, value: 9, limit: 8 },
                KVMEM_ERR_LIMIT,
            ),
            (ServerError::TooMany { what: TooMany::Sessions, limit: 256 }, KVMEM_ERR_LIMIT),
            (ServerError::ReadOnly, KVMEM_ERR_READ_ONLY),
            (ServerError::NotOperator, KVMEM_ERR_UNSUPPORTED),
            (ServerError::NotAllowed { uid: 7, own: 8 }, KVMEM_ERR_PERMISSION),
            (
                ServerError::NamespaceNotAllowed { uid: 7, name: "a".to_owned() },
                KVMEM_ERR_PERMISSION,
            ),
            (ServerError::OnlyReads { uid: 7, name: "a".to_owned() }, KVMEM_ERR_PERMISSION),
            (ServerError::Version { version: 1, known: 2 }, KVMEM_ERR_PROTOCOL),
            (ServerError::Undecodable { len: 9 }, KVMEM_ERR_PROTOCOL),
        ];
        for (error, status) in of_server {
            let text = error.to_string();
            let error = CallError::from(ClientError::Call(error));
            assert_eq!((error.status(), error.to_string()), (status, text));
        }
        let path = "/run/kvmem.sock".to_owned();
        let foreign =
            ClientError::ForeignServer { path: path.clone(), uid: 7, own: 8, users: vec![9] };
        let gone = std::io::Error::from_raw_os_error(libc::ECONNREFUSED);
        let own = [
            (ClientError::Disconnected { path, waited_ms: 5, error: gone }, KVMEM_ERR_DISCONNECTED),
            (foreign, KVMEM_ERR_PERMISSION),
            (ClientError::MemoryReplaced, KVMEM_ERR_MEMORY_REPLACED),
            (ClientError::Memory(kvmem::arena::ArenaError::ZeroSize), KVMEM_ERR_ZERO_SIZE),
            (kvmem::register::RegisterError::Empty.into(), KVMEM_ERR_ZERO_SIZE),
            (
                ClientError::Protocol { what: "the server did not answer the greeting" },
                KVMEM_ERR_PROTOCOL,
            ),
            (ClientError::Forked, KVMEM_ERR_FORKED),
            (ClientError::Interrupted, KVMEM_ERR_CANCELLED),
            (ClientError::TooLong { len: 5, at: 1, capacity: 5 }, KVMEM_ERR_OUT_OF_BOUNDS),
            (ClientError::ForeignReservation { index: 1 }, KVMEM_ERR_FOREIGN_ALLOCATION),
            (ClientError::ReservationLost, KVMEM_ERR_STALE_ALLOCATION),
            (ClientError::PinsRevoked, KVMEM_ERR_STALE_ALLOCATION),
            (ClientError::Damaged { got: 1, expected: 2 }, KVMEM_ERR_DAMAGED),
            (ClientError::Unverified, KVMEM_ERR_UNSUPPORTED),
        ];
        for (error, status) in own {
            let text = error.to_string();
            let error = CallError::from(error);
            assert_eq!((error.status(), error.to_string()), (status, text));
        }
    }
}

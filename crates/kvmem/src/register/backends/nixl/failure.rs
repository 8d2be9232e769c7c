//! *Failures*: what NIXL's status numbers mean.

use std::fmt;

use super::abi::{SUCCESS, Status};
use crate::arena::Errno;
use crate::register::{NotAvailable, RegistrarError};

/// A failed call of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NixlFailure {
    call: &'static str,
    status: Status,
}

// Values of `nixl_capi_status_t`. Until NIXL 1.5 most failures are `BACKEND`; later releases
// distinguish them.
const INVALID_PARAM: Status = -1;
const BACKEND: Status = -2;
const INVALID_STATE: Status = -3;
const EXCEPTION: Status = -4;
const NOT_FOUND: Status = -6;
const MISMATCH: Status = -8;
const NOT_ALLOWED: Status = -9;
const REPOST_ACTIVE: Status = -10;
const UNKNOWN: Status = -11;
const NOT_SUPPORTED: Status = -12;

/// Where the library reports causes: it has no function that returns them.
const LOG: &str = "NIXL writes the cause to standard error, in full with NIXL_LOG_LEVEL=DEBUG \
                   (and UCX_LOG_LEVEL=info for UCX)";

/// The call that creates an agent.
pub(super) const CREATE_AGENT: &str = "nixl_capi_create_agent";

/// Converts the status of a call.
pub(super) fn check(call: &'static str, status: Status) -> Result<(), NixlFailure> {
    if status == SUCCESS { Ok(()) } else { Err(NixlFailure { call, status }) }
}

impl fmt::Display for NixlFailure {
    /// `nixl_capi_create_backend: NIXL_CAPI_ERROR_BACKEND (-2)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.detail())
    }
}

impl NixlFailure {
    /// Returns the failure of a call that returned success without creating an object.
    pub(super) fn nothing(call: &'static str) -> NixlFailure {
        NixlFailure { call, status: SUCCESS }
    }

    /// Returns the status by name and number.
    fn detail(self) -> String {
        let name = match self.status {
            SUCCESS => return "success, but no object was created".to_owned(),
            INVALID_PARAM => "NIXL_CAPI_ERROR_INVALID_PARAM",
            BACKEND => "NIXL_CAPI_ERROR_BACKEND",
            INVALID_STATE => "NIXL_CAPI_ERROR_INVALID_STATE",
            EXCEPTION => "NIXL_CAPI_ERROR_EXCEPTION",
            NOT_FOUND => "NIXL_CAPI_ERROR_NOT_FOUND",
            MISMATCH => "NIXL_CAPI_ERROR_MISMATCH",
            NOT_ALLOWED => "NIXL_CAPI_ERROR_NOT_ALLOWED",
            REPOST_ACTIVE => "NIXL_CAPI_ERROR_REPOST_ACTIVE",
            UNKNOWN => "NIXL_CAPI_ERROR_UNKNOWN",
            NOT_SUPPORTED => "NIXL_CAPI_ERROR_NOT_SUPPORTED",
            _ => "a status without a known name",
        };
        format!("{name} ({})", self.status)
    }

    /// Returns the nearest errno.
    fn errno(self) -> Errno {
        match self.status {
            INVALID_PARAM | INVALID_STATE | MISMATCH => Errno::EINVAL,
            NOT_FOUND => Errno::ENOENT,
            NOT_ALLOWED => Errno::EPERM,
            REPOST_ACTIVE => Errno::EBUSY,
            NOT_SUPPORTED => Errno::EOPNOTSUPP,
            _ => Errno::EIO,
        }
    }

    /// Explains why memory could not be registered.
    pub(super) fn register(self) -> RegistrarError {
        self.to_error(match self.status {
            NOT_FOUND | NOT_SUPPORTED => "the backend does not support host memory: use UCX",
            _ => {
                "the backend could not register the memory: for RDMA cards it pins the pages, \
                 which RLIMIT_MEMLOCK limits (`ulimit -l`); NIXL writes the cause to standard \
                 error"
            }
        })
    }

    /// Explains why a key could not be deregistered.
    pub(super) fn deregister(self) -> RegistrarError {
        self.to_error(match self.status {
            NOT_FOUND => "other code has deregistered it: leave that to the registrar of the key",
            REPOST_ACTIVE | NOT_ALLOWED => "transfers still use it: end them first",
            _ => LOG,
        })
    }

    /// Explains why there is no metadata.
    pub(super) fn metadata(self) -> RegistrarError {
        self.to_error(match self.status {
            EXCEPTION | UNKNOWN => LOG,
            _ => {
                "use a backend that peers can reach, such as UCX; NIXL writes the cause to \
                 standard error"
            }
        })
    }

    fn to_error(self, remedy: &'static str) -> RegistrarError {
        RegistrarError::new(self.call, self.errno(), remedy).detail(self.detail())
    }

    /// Explains why there is no agent with this backend. `about` names the backend.
    pub(super) fn not_available(self, about: &str) -> NotAvailable {
        // Creating an agent reads $HOME/.nixl.cfg, and fails without a message if the process may
        // not even check whether that file exists.
        let remedy = if self.call == CREATE_AGENT {
            "set HOME to a folder that this process may search, and NIXL_CONFIG_FILE, if set, to a \
             file that it may read"
        } else {
            LOG
        };
        not_available(format!("{about}{self}"), remedy)
    }
}

/// Returns the error for a library or a backend that is missing.
pub(super) fn not_available(reason: String, remedy: &'static str) -> NotAvailable {
    NotAvailable::new("nixl", reason, remedy)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_an_errno_and_a_name() {
        assert_eq!(check("call", 0), Ok(()));
        for (status, errno, name) in [
            (-1, Errno::EINVAL, "NIXL_CAPI_ERROR_INVALID_PARAM (-1)"),
            (-2, Errno::EIO, "NIXL_CAPI_ERROR_BACKEND (-2)"),
            (-3, Errno::EINVAL, "NIXL_CAPI_ERROR_INVALID_STATE (-3)"),
            (-4, Errno::EIO, "NIXL_CAPI_ERROR_EXCEPTION (-4)"),
            (-5, Errno::EIO, "a status without a known name (-5)"),
            (-6, Errno::ENOENT, "NIXL_CAPI_ERROR_NOT_FOUND (-6)"),
            (-8, Errno::EINVAL, "NIXL_CAPI_ERROR_MISMATCH (-8)"),
            (-9, Errno::EPERM, "NIXL_CAPI_ERROR_NOT_ALLOWED (-9)"),
            (-10, Errno::EBUSY, "NIXL_CAPI_ERROR_REPOST_ACTIVE (-10)"),
            (-11, Errno::EIO, "NIXL_CAPI_ERROR_UNKNOWN (-11)"),
            (-12, Errno::EOPNOTSUPP, "NIXL_CAPI_ERROR_NOT_SUPPORTED (-12)"),
            (1, Errno::EIO, "a status without a known name (1)"),
        ] {
            let failure = check("call", status).unwrap_err();
            assert_eq!(failure.to_string(), format!("call: {name}"));
            for error in [failure.register(), failure.deregister(), failure.metadata()] {
                assert_eq!((error.errno, error.detail.as_deref()), (errno, Some(name)));
                assert!(!error.remedy.is_empty());
            }
        }
        assert_eq!(NixlFailure::nothing("call").register().errno, Errno::EIO);
    }
}

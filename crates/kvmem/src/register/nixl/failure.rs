//! *Failures*: what NIXL's numbers mean.

use std::fmt;

use super::super::{NotAvailable, RegistrarError};
use super::abi::{SUCCESS, Status};
use crate::arena::Errno;

/// A call of the library that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    call: &'static str,
    status: Status,
}

// Of `nixl_capi_status_t`. Until NIXL 1.5 most failures are `BACKEND`, later each has a number of
// its own.
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

/// Where the library says why: it has no texts that a caller could ask for.
const LOG: &str = "NIXL writes why to standard error, all of it with NIXL_LOG_LEVEL=DEBUG (and UCX_LOG_LEVEL=info for UCX)";

/// The call that makes an agent.
pub(super) const CREATE_AGENT: &str = "nixl_capi_create_agent";

/// What a call has returned.
pub(super) fn check(call: &'static str, status: Status) -> Result<(), Failure> {
    if status == SUCCESS { Ok(()) } else { Err(Failure { call, status }) }
}

impl fmt::Display for Failure {
    /// `nixl_capi_create_backend: NIXL_CAPI_ERROR_BACKEND (-2)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.detail())
    }
}

impl Failure {
    /// A call that has returned success, and nothing where it should have made something.
    pub(super) fn nothing(call: &'static str) -> Failure {
        Failure { call, status: SUCCESS }
    }

    /// The status by name and number.
    fn detail(self) -> String {
        let name = match self.status {
            SUCCESS => return "success, and nothing was made".to_owned(),
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
            _ => "a status without a name here",
        };
        format!("{name} ({})", self.status)
    }

    /// The nearest there is.
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

    /// Why memory was not registered.
    pub(super) fn register(self) -> RegistrarError {
        self.refusal(match self.status {
            NOT_FOUND | NOT_SUPPORTED => "the backend does not take memory of the host: use UCX",
            _ => {
                "the backend could not register the memory: with RDMA cards it pins the pages, which takes RLIMIT_MEMLOCK \
                 (`ulimit -l`); NIXL writes why to standard error"
            }
        })
    }

    /// Why a key was not taken back.
    pub(super) fn deregister(self) -> RegistrarError {
        self.refusal(match self.status {
            NOT_FOUND => {
                "somebody else has given it back to the agent: leave that to its registrar"
            }
            REPOST_ACTIVE | NOT_ALLOWED => "transfers still use it: end them first",
            _ => LOG,
        })
    }

    /// Why there is no metadata.
    pub(super) fn metadata(self) -> RegistrarError {
        self.refusal(match self.status {
            EXCEPTION | UNKNOWN => LOG,
            _ => "the backend must be one that peers can reach, as UCX is; NIXL writes why to standard error",
        })
    }

    fn refusal(self, remedy: &'static str) -> RegistrarError {
        RegistrarError::new(self.call, self.errno(), remedy).detail(self.detail())
    }

    /// Why there is no agent with this backend. `about` says which.
    pub(super) fn not_available(self, about: &str) -> NotAvailable {
        // It reads $HOME/.nixl.cfg, and gives up where it may not even look whether that is there.
        // It does not write why.
        let remedy = if self.call == CREATE_AGENT {
            "let HOME be a folder that this process may look into, and NIXL_CONFIG_FILE, if set, a file that it may read"
        } else {
            LOG
        };
        super::not_available(format!("{about}{self}"), remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_a_number_and_words() {
        assert_eq!(check("call", 0), Ok(()));
        for (status, errno, name) in [
            (-1, Errno::EINVAL, "NIXL_CAPI_ERROR_INVALID_PARAM (-1)"),
            (-2, Errno::EIO, "NIXL_CAPI_ERROR_BACKEND (-2)"),
            (-3, Errno::EINVAL, "NIXL_CAPI_ERROR_INVALID_STATE (-3)"),
            (-4, Errno::EIO, "NIXL_CAPI_ERROR_EXCEPTION (-4)"),
            (-5, Errno::EIO, "a status without a name here (-5)"),
            (-6, Errno::ENOENT, "NIXL_CAPI_ERROR_NOT_FOUND (-6)"),
            (-8, Errno::EINVAL, "NIXL_CAPI_ERROR_MISMATCH (-8)"),
            (-9, Errno::EPERM, "NIXL_CAPI_ERROR_NOT_ALLOWED (-9)"),
            (-10, Errno::EBUSY, "NIXL_CAPI_ERROR_REPOST_ACTIVE (-10)"),
            (-11, Errno::EIO, "NIXL_CAPI_ERROR_UNKNOWN (-11)"),
            (-12, Errno::EOPNOTSUPP, "NIXL_CAPI_ERROR_NOT_SUPPORTED (-12)"),
            (1, Errno::EIO, "a status without a name here (1)"),
        ] {
            let failure = check("call", status).unwrap_err();
            assert_eq!(failure.to_string(), format!("call: {name}"));
            for refusal in [failure.register(), failure.deregister(), failure.metadata()] {
                assert_eq!((refusal.errno, refusal.detail.as_deref()), (errno, Some(name)));
                assert!(!refusal.remedy.is_empty());
            }
        }
        assert_eq!(Failure::nothing("call").register().errno, Errno::EIO);
    }
}

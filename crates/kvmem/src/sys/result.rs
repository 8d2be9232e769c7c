//! *Result*: what a system call returns.

use super::errno::Errno;

/// The result of a system call.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// Converts the result of a C function that returns −1 and sets `errno`.
pub(super) fn check(returned: libc::c_long) -> Result<usize> {
    usize::try_from(returned).map_err(|_| Errno::last())
}

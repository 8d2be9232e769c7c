//! *Gate*: where a test's plan makes a system call fail before it is made.
//!
//! Miri interprets the library without a kernel. There every call fails as on a kernel that does
//! not have it, except those that the standard library makes on its behalf.

use super::call::Call;
#[cfg(miri)]
use super::errno::Errno;
use super::errno::Result;
#[cfg(feature = "fault-injection")]
use super::fault;

/// Returns an error if a test's plan makes this call fail.
#[cfg(all(feature = "fault-injection", not(miri)))]
pub(super) fn gate(call: Call) -> Result<()> {
    fault::check(call)
}

/// Lets every call through.
#[cfg(not(any(feature = "fault-injection", miri)))]
#[inline(always)]
pub(super) fn gate(_: Call) -> Result<()> {
    Ok(())
}

/// Returns an error for every call that Miri does not know.
#[cfg(miri)]
pub(super) fn gate(call: Call) -> Result<()> {
    #[cfg(feature = "fault-injection")]
    fault::check(call)?;
    match call {
        Call::Spawn => Ok(()),
        _ => Err(Errno::ENOSYS),
    }
}

//! *Gate*: where a test's plan makes a system call fail before it is made.

use super::call::Call;
#[cfg(feature = "fault-injection")]
use super::fault;
use super::result::Result;

/// Returns an error if a test's plan makes this call fail.
#[cfg(feature = "fault-injection")]
pub(super) fn gate(call: Call) -> Result<()> {
    fault::check(call)
}

/// Lets every call through.
#[cfg(not(feature = "fault-injection"))]
#[inline(always)]
pub(super) fn gate(_: Call) -> Result<()> {
    Ok(())
}

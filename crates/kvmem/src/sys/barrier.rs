//! *Barriers*: a memory barrier on all threads of the process.

use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(miri)]
use super::Errno;
#[cfg(not(miri))]
use super::check;
use super::{Call, Result, gate};

// <linux/membarrier.h>
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Whether this process has announced itself. A forked child inherits it.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Announces that this process uses [`barrier`]; once is enough. The kernel has it since 4.14.
pub(crate) fn register_barrier() -> Result<()> {
    gate(Call::RegisterMembarrier)?;
    // Relaxed: two that announce at once do no harm.
    if !REGISTERED.load(Ordering::Relaxed) {
        membarrier(REGISTER_PRIVATE_EXPEDITED)?;
        REGISTERED.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// When it returns, every running thread of the process has gone through a full memory barrier
/// since it was called; and those that do not run go through one before they run again.
pub(crate) fn barrier() -> Result<()> {
    gate(Call::Membarrier)?;
    membarrier(PRIVATE_EXPEDITED)
}

/// Miri does not know this call: to it the kernel is one that refuses.
#[cfg(miri)]
fn membarrier(_: libc::c_int) -> Result<()> {
    Err(Errno::new(libc::ENOSYS))
}

#[cfg(not(miri))]
fn membarrier(command: libc::c_int) -> Result<()> {
    // SAFETY: the call takes no pointers.
    check(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }).map(drop)
}

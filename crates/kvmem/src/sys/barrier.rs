//! *Barriers*: memory barriers on all threads of the process.

use std::sync::atomic::{AtomicBool, Ordering};

use super::call::Call;
use super::errno::{Result, check};
use super::gate::gate;

// <linux/membarrier.h>
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Whether this process has registered. A forked child inherits the registration.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers this process for [`barrier`]; once is enough. Linux 4.14.
pub(crate) fn register_barrier() -> Result<()> {
    gate(Call::RegisterMembarrier)?;
    // Relaxed: registering twice is harmless.
    if !REGISTERED.load(Ordering::Relaxed) {
        membarrier(REGISTER_PRIVATE_EXPEDITED)?;
        REGISTERED.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs a full memory barrier on every running thread of the process before it returns. Threads
/// that do not run pass a barrier before they run again.
pub(crate) fn barrier() -> Result<()> {
    gate(Call::Membarrier)?;
    membarrier(PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> Result<()> {
    // SAFETY: the call takes no pointers.
    check(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }).map(drop)
}

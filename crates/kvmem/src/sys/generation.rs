//! *Generation*: how many forks lie between a process and the one that counted first.
//!
//! A forked child has one thread. Locks that other threads held at the fork are never released in
//! the child, and tables that they were changing stay half changed. An object that must not be used
//! in a child remembers the generation in which it was made and compares it with the current one:
//! one load, and no call of the kernel.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Call, Errno, Result, gate};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static COUNTED: Once = Once::new();

/// Returns the generation of this process. It counts forks only after [`count_forks`].
#[inline]
pub(crate) fn generation() -> u32 {
    // Relaxed: it changes in a child alone, before `fork` returns there and while the child has one
    // thread.
    GENERATION.load(Ordering::Relaxed)
}

/// Counts forks from now on. If the C library has no memory for that, a child is not told from its
/// parent: it may wait for a lock that no thread releases, as with any other lock.
pub(crate) fn count_forks() {
    COUNTED.call_once(|| {
        let _ = in_forked_child(count);
    });
}

/// Has `child` run in each forked child, before `fork` returns there.
fn in_forked_child(child: unsafe extern "C" fn()) -> Result<()> {
    gate(Call::AtFork)?;
    if cfg!(miri) {
        return Err(Errno::new(libc::ENOSYS));
    }
    // SAFETY: the function lives as long as the process, and may be called from any thread.
    match unsafe { libc::pthread_atfork(None, None, Some(child)) } {
        0 => Ok(()),
        errno => Err(Errno::new(errno)),
    }
}

extern "C" fn count() {
    // Relaxed: as in `generation`.
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

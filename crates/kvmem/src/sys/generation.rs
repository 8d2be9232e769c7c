//! *Generation*: the number of forks since the first process that counted them.
//!
//! A forked child has one thread. Locks that other threads held at the fork are never released in
//! the child, and tables that they were changing stay half changed. An object that must not be used
//! in a child stores the generation in which it was made and compares it with the current one: one
//! load, and no system call.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use super::call::Call;
use super::errno::Errno;
use super::errno::Result;
use super::gate::gate;

static GENERATION: AtomicU32 = AtomicU32::new(0);
static COUNTED: Once = Once::new();

/// Returns the generation of this process. It counts forks only after [`count_forks`].
#[inline]
pub(crate) fn generation() -> u32 {
    // Relaxed: only a forked child changes it, before `fork` returns there and while the child has
    // one thread.
    GENERATION.load(Ordering::Relaxed)
}

/// Counts forks from now on. If the C library has no memory for the handler, a child is not
/// distinguished from its parent: it may wait for a lock that no thread releases.
pub(crate) fn count_forks() {
    COUNTED.call_once(|| {
        let _ = in_forked_child(count);
    });
}

/// Runs `child` in each forked child before `fork` returns there.
fn in_forked_child(child: unsafe extern "C" fn()) -> Result<()> {
    gate(Call::AtFork)?;
    // SAFETY: the function exists until the process ends, and any thread may call it.
    match unsafe { libc::pthread_atfork(None, None, Some(child)) } {
        0 => Ok(()),
        errno => Err(Errno::new(errno)),
    }
}

extern "C" fn count() {
    // Relaxed: the child has one thread; see `generation`.
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

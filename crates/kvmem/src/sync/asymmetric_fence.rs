//! *Asymmetric fence*: a fence between two threads, one of which pays for both.
//!
//! A frequent side makes the [light](light_fence) half, which only keeps the compiler from
//! reordering. A rare side makes the [heavy](heavy_fence) half: the kernel runs a barrier on every
//! thread. The checkers have no barriers on other threads. In a model both fences are ordinary
//! fences and the heavy half never fails: otherwise the model would check only the fallback.

use std::sync::atomic::compiler_fence;

use crate::sys;

use super::checker::{MODELLED, Ordering, fence};

/// The frequent side's half. SeqCst pairs with the rare side's [`heavy_fence`].
#[inline(always)]
pub(crate) fn light_fence() {
    if MODELLED { fence(Ordering::SeqCst) } else { compiler_fence(Ordering::SeqCst) }
}

/// The rare side's half, except for its own thread: that thread makes a fence besides. Returns
/// false if the kernel ran no barrier.
pub(crate) fn heavy_fence() -> bool {
    #[cfg(kvmem_simulated)]
    super::simulated::system_call();
    MODELLED || sys::barrier().is_ok()
}

/// Prepares the process for [`heavy_fence`]. Returns whether the kernel does not allow it.
pub(crate) fn heavy_fence_fails() -> bool {
    !MODELLED && sys::register_barrier().is_err()
}

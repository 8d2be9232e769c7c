//! *Process allocator*: the slab allocator that all of a process shares.

use std::sync::{Mutex, OnceLock, PoisonError};

use super::slab_allocator::SlabAllocator;
use super::slab_builder::SlabSetupError;

static PROCESS_ALLOCATOR: OnceLock<SlabAllocator> = OnceLock::new();

extern "C" fn report_at_exit() {
    if let Some(allocator) = PROCESS_ALLOCATOR.get() {
        allocator.report_leaks();
    }
}

impl SlabAllocator {
    /// Returns the allocator of this process. The first call makes it, as [`new`](Self::new) does.
    /// If debugging is enabled, its leaks are reported when the process exits normally.
    ///
    /// # Errors
    ///
    /// Returns [`SlabSetupError::Setting`] if an environment variable holds an unknown word. A
    /// later call tries again.
    pub fn get() -> Result<&'static SlabAllocator, SlabSetupError> {
        static INIT: Mutex<()> = Mutex::new(());
        if let Some(existing) = PROCESS_ALLOCATOR.get() {
            return Ok(existing);
        }
        // The lock guards no data: a thread that panicked under it left nothing half done.
        let _init = INIT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(existing) = PROCESS_ALLOCATOR.get() {
            return Ok(existing);
        }
        let new_one = Self::new()?;
        if new_one.shared.debug.is_some() {
            crate::sys::at_exit(report_at_exit);
        }
        Ok(PROCESS_ALLOCATOR.get_or_init(|| new_one))
    }
}

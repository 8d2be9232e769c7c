//! *Processors*: how many threads can run at the same time.

/// Returns the number of processors that this process may use; on simulated cores, their number.
#[cfg(kvmem_simulated)]
pub(crate) use super::simulated::processors;

/// Returns the number of processors that this process may use, or that a test has set.
#[cfg(not(kvmem_simulated))]
pub(crate) fn processors() -> usize {
    // Relaxed, both: threads that count at the same time find the same number.
    match COUNT.load(Ordering::Relaxed) {
        0 => {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            COUNT.store(count, Ordering::Relaxed);
            count
        }
        count => count,
    }
}

#[cfg(not(kvmem_simulated))]
use std::sync::atomic::{AtomicUsize, Ordering};

/// 0 before the first call.
#[cfg(not(kvmem_simulated))]
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Sets the number for the tests of this process; 0 for the machine's.
#[cfg(all(test, not(loom), not(kvmem_simulated)))]
pub(crate) fn set_processors(count: usize) {
    // Relaxed: as in `processors`.
    COUNT.store(count, Ordering::Relaxed);
}

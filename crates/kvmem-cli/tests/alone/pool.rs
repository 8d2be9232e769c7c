//! The machine's pool of hugepages of 2 MiB, for one test at a time.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
/// Where a benchmark notes what it has borrowed.
pub(crate) const LOAN_FILE: &str = "/run/kvmem-hugepages-2048kB.lock";

/// Hugepages that a test needs: 64 MiB in a build without optimization, else 512 MiB.
pub(crate) const PAGES: u64 = if cfg!(debug_assertions) { 32 } else { 256 };

pub(crate) fn pool() -> u64 {
    fs::read_to_string(POOL).unwrap().trim().parse().unwrap()
}

/// The pool, for one test at a time. Dropping this restores the pool.
pub(crate) struct Machine {
    pub(crate) before: u64,
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    /// Returns `None` if the pool cannot be resized, or is not empty: a run would use its free
    /// pages before it borrows any.
    pub(crate) fn take() -> Option<Machine> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = |why: &str| {
            println!("skipped: {why}");
            None
        };
        if Path::new(LOAN_FILE).exists() {
            return skip("another run borrows hugepages at the moment");
        }
        let Ok(text) = fs::read_to_string(POOL) else {
            return skip("there are no hugepages of 2 MiB");
        };
        let before: u64 = text.trim().parse().unwrap();
        if fs::write(POOL, (before + 2 * PAGES).to_string()).is_err() {
            return skip("only root resizes the pool");
        }
        let got = pool();
        fs::write(POOL, before.to_string()).unwrap();
        if before > 0 {
            return skip("the pool has pages already");
        }
        if got < before + 2 * PAGES {
            return skip("the machine has no memory for the hugepages of two runs");
        }
        Some(Machine { before, _alone: alone })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::write(POOL, self.before.to_string());
        let _ = fs::remove_file(LOAN_FILE);
    }
}

//! Hugepages of 2 MiB for the rows that need them, borrowed from the machine's pool while the rows
//! are measured.
//!
//! The pool belongs to the whole machine. A run changes its size (`vm.nr_hugepages`) only if the
//! options allow borrowing; otherwise it uses the pages that are free.
//!
//! **The pool is always restored.** A loan that ends returns its pages. If a signal ends the
//! process (SIGINT, SIGTERM, SIGHUP, SIGQUIT), a thread first returns the pages that the process
//! has borrowed. If the process is killed otherwise, its loans remain in a file, and the
//! [next run](recover) returns them.
//!
//! **Runs share the pool.** The file records the size of the pool before the first loan, how many
//! pages were free then, and a line for each loan: process, start of the process, pages. The pool
//! has the size *before* plus the pages that all loans together need beyond the free ones. Every
//! change is made under the file's lock. The last loan to end restores *before* and removes the
//! file. Containers that share a kernel but not `/run` do not see each other's loans.
//!
//! **Other processes may resize the pool.** If the loans do not explain its size, another process
//! has set it, and the run leaves it unchanged.

mod loans;
mod pool;
mod signals;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use self::loans::{Loan, LockedLoans};
use self::pool::{HugepagePool, SystemPool};

const HUGE_PAGE: u64 = 2 << 20;

/// Serializes the loans of this process. A thread that ends the process keeps it locked.
static LOAN_LOCK: Mutex<()> = Mutex::new(());

/// Hugepages of 2 MiB that stay available until this is dropped.
#[derive(Debug)]
pub(crate) struct Hugepages {
    loan: Option<Loan>,
}

/// A pool whose former size was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Pages of 2 MiB in the pool before.
    pub found: u64,
    /// Pages in the pool now.
    pub pages: u64,
    /// The processes that had not returned their loans.
    pub left_by: Vec<u32>,
}

impl Hugepages {
    /// Makes `bytes` of hugepages available, borrowing missing pages if allowed.
    ///
    /// # Errors
    /// The reason why there are not enough.
    pub(crate) fn provide(bytes: u64, may_borrow: bool) -> Result<Self, String> {
        let pages = bytes.div_ceil(HUGE_PAGE);
        let pool = SystemPool;
        let lent = loans::lent_pages(loans::LOAN_FILE.as_ref());
        let free = pool.free()?.saturating_sub(lent);
        if !may_borrow {
            return match pages.saturating_sub(free) {
                0 => Ok(Self { loan: None }),
                missing => Err(format!(
                    "{missing} of {pages} hugepages of 2 MiB are missing; \
                     --borrow-hugepages adds them to vm.nr_hugepages for the duration of the run"
                )),
            };
        }
        // Before borrowing: from then on a signal must return the pages.
        signals::watch(give_back_all).map_err(|error| {
            format!("cannot borrow hugepages without watching signals: {error}")
        })?;
        let _loans = LOAN_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let available = crate::limits::available_bytes().unwrap_or(0) / 2;
        let loan = this_process(pages);
        let borrowed = LockedLoans::open(loans::LOAN_FILE.as_ref(), true)
            .and_then(|locked| locked.borrow(&pool, &loan, available / HUGE_PAGE));
        match borrowed {
            Ok(()) => Ok(Self { loan: Some(loan) }),
            // Enough pages are free without a loan.
            Err(_) if free >= pages => Ok(Self { loan: None }),
            Err(reason) => Err(reason),
        }
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        if let Some(loan) = self.loan.take() {
            let _loans = LOAN_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
            // If writing fails now, although it succeeded for the loan, the next run returns the
            // pages.
            let _ = LockedLoans::open(loans::LOAN_FILE.as_ref(), false)
                .and_then(|locked| locked.give_back(&SystemPool, |other| *other == loan));
        }
    }
}

/// Returns the hugepages of runs that were killed, if there are any.
///
/// # Errors
/// The reason why they cannot be returned.
pub fn recover() -> Result<Option<Restored>, String> {
    if !std::path::Path::new(loans::LOAN_FILE).exists() {
        return Ok(None);
    }
    let _loans = LOAN_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    LockedLoans::open(loans::LOAN_FILE.as_ref(), false)?.give_back(&SystemPool, |_| false)
}

/// Ends all loans of this process, which is about to end, and prevents further ones.
fn give_back_all() {
    std::mem::forget(LOAN_LOCK.lock().unwrap_or_else(PoisonError::into_inner));
    let own = std::process::id();
    let _ = LockedLoans::open(loans::LOAN_FILE.as_ref(), false)
        .and_then(|locked| locked.give_back(&SystemPool, |loan| loan.process == own));
}

fn this_process(pages: u64) -> Loan {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    // Relaxed: only the numbers must differ.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Loan { process, start: loans::start_of(process).unwrap_or(0), number, pages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_keeps_its_size_without_permission_to_borrow() {
        let Ok(before) = SystemPool.total() else {
            return println!("skipped: there is no pool here");
        };
        let reason = Hugepages::provide(1 << 60, false).unwrap_err();
        assert!(reason.contains("--borrow-hugepages"), "{reason}");
        assert_eq!(SystemPool.total(), Ok(before));
        let reason = Hugepages::provide(1 << 60, true).unwrap_err();
        assert!(reason.contains("hugepages"), "{reason}");
        assert_eq!(SystemPool.total(), Ok(before));
    }
}

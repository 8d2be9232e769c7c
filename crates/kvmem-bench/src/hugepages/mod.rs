//! *Hugepages*: pages of 2 MiB that some rows need, lent by the machine's pool while they are
//! measured.
//!
//! The pool belongs to the whole machine, so a run changes its size (`vm.nr_hugepages`) only where
//! it is told to borrow. A run that is not told to uses the pages that are free.
//!
//! **Every ending restores the pool.** A loan that ends gives its pages back. A signal that ends
//! the process (SIGINT, SIGTERM, SIGHUP, SIGQUIT) is taken by a thread, which gives back
//! what the process has borrowed and lets the signal do its work. What a process leaves that is
//! killed otherwise stands in a ledger, and the [next run](recover) settles it.
//!
//! **Runs share.** The ledger has the size of the pool before the first loan, how many of its pages
//! were free then, and a line for each loan: process, start of the process, pages. The pool is as
//! large as *before* plus what all loans together need beyond the free pages. All changes are made
//! under the lock of the ledger's file. The last loan to end restores *before* and removes the
//! file. Containers that share a kernel and no `/run` do not see each other's loans.
//!
//! **Others may set the pool meanwhile.** Its size then is none that loans explain, and it is left
//! as it is.

mod ledger;
mod pool;
mod signals;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use self::ledger::{Borrower, Locked};
use self::pool::{Pool, SystemPool};

const HUGE_PAGE: u64 = 2 << 20;

/// The loans of this process are made and ended one at a time; who ends the process keeps this.
static LOANS: Mutex<()> = Mutex::new(());

/// Hugepages of 2 MiB that are there for as long as this lives.
#[derive(Debug)]
pub(crate) struct Hugepages {
    loan: Option<Borrower>,
}

/// A pool that was put back to its former size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Pages that the pool had, of 2 MiB.
    pub found: u64,
    /// Pages that it has again.
    pub pages: u64,
    /// The runs that left it so.
    pub left_by: Vec<u32>,
}

impl Hugepages {
    /// Sees to it that `bytes` of hugepages are free, if need be with pages that are borrowed.
    ///
    /// # Errors
    /// Why there are not enough, in words.
    pub(crate) fn provide(bytes: u64, may_borrow: bool) -> Result<Self, String> {
        let pages = bytes.div_ceil(HUGE_PAGE);
        let pool = SystemPool;
        let lent = ledger::lent(ledger::PLACE.as_ref());
        let free = pool.free()?.saturating_sub(lent);
        if !may_borrow {
            return match pages.saturating_sub(free) {
                0 => Ok(Self { loan: None }),
                lacking => Err(format!(
                    "{lacking} of {pages} hugepages of 2 MiB are lacking; with --borrow-hugepages they are added to \
                     vm.nr_hugepages for the time of the run"
                )),
            };
        }
        // Before anything is borrowed: what is taken must be given back.
        signals::watch(give_back_all).map_err(|error| {
            format!("signals cannot be watched, so no hugepages are borrowed: {error}")
        })?;
        let _loans = LOANS.lock().unwrap_or_else(PoisonError::into_inner);
        let available = crate::arena::system::available_bytes().unwrap_or(0) / 2;
        let loan = this_process(pages);
        let borrowed = Locked::open(ledger::PLACE.as_ref(), true)
            .and_then(|locked| locked.borrow(&pool, &loan, available / HUGE_PAGE));
        match borrowed {
            Ok(()) => Ok(Self { loan: Some(loan) }),
            // Nothing need be borrowed, so it does not matter that it cannot be.
            Err(_) if free >= pages => Ok(Self { loan: None }),
            Err(reason) => Err(reason),
        }
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        if let Some(loan) = self.loan.take() {
            let _loans = LOANS.lock().unwrap_or_else(PoisonError::into_inner);
            // What was writable a moment ago still is. If it is not, the next run tries again.
            let _ = Locked::open(ledger::PLACE.as_ref(), false)
                .and_then(|locked| locked.give_back(&SystemPool, |other| *other == loan));
        }
    }
}

/// Settles what killed runs have left, if there is any.
///
/// # Errors
/// Why it cannot be settled, in words.
pub fn recover() -> Result<Option<Restored>, String> {
    if !std::path::Path::new(ledger::PLACE).exists() {
        return Ok(None);
    }
    let _loans = LOANS.lock().unwrap_or_else(PoisonError::into_inner);
    Locked::open(ledger::PLACE.as_ref(), false)?.give_back(&SystemPool, |_| false)
}

/// Ends all loans of this process, which is about to end. No other is made after this.
fn give_back_all() {
    std::mem::forget(LOANS.lock().unwrap_or_else(PoisonError::into_inner));
    let own = std::process::id();
    let _ = Locked::open(ledger::PLACE.as_ref(), false)
        .and_then(|locked| locked.give_back(&SystemPool, |loan| loan.process == own));
}

fn this_process(pages: u64) -> Borrower {
    static LOAN: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    // Relaxed: only the numbers must differ.
    let loan = LOAN.fetch_add(1, Ordering::Relaxed);
    Borrower { process, start: ledger::start_of(process).unwrap_or(0), loan, pages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_word_the_pool_stays_as_it_is() {
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

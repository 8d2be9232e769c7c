//! *Memlock*: `RLIMIT_MEMLOCK` as it applies to a registrar of this process.

use crate::arena::{MachineFiles, is_exempt_from_memlock, locked_bytes, pinned_bytes};
use crate::register::{Account, Memlock};
use crate::sys::{self, Resource};

/// Returns the limit that applies to this thread now; `None` if none is known to apply.
pub(super) fn limit(account: Account) -> Option<Memlock> {
    if exempt() { None } else { unexempted_limit(account) }
}

/// Returns the limit as it applies to a thread that is not exempt, even if this one is.
pub(super) fn unexempted_limit(account: Account) -> Option<Memlock> {
    let limit_bytes = sys::resource_limit(Resource::Locked).ok().flatten()?;
    let files = MachineFiles::here();
    let used_bytes = match account {
        // The kernel charges these to the user, over all processes, and does not report them.
        Account::Rings => None,
        Account::Pinned => pinned_bytes(&files).ok(),
        Account::Locked => locked_bytes(&files).ok(),
    };
    Some(Memlock { account, limit_bytes, used_bytes: used_bytes.unwrap_or(0) })
}

/// Returns whether this thread is exempt from the limit. If the kernel does not say, no limit is
/// assumed.
pub(super) fn exempt() -> bool {
    is_exempt_from_memlock(&MachineFiles::here()).unwrap_or(true)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_limit_or_is_exempt() {
        for account in [Account::Rings, Account::Pinned, Account::Locked] {
            match limit(account) {
                None => assert!(exempt() || unexempted_limit(account).is_none()),
                Some(limit) => assert_eq!((limit.account, exempt()), (account, false)),
            }
        }
    }
}

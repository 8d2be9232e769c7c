//! *Memlock*: `RLIMIT_MEMLOCK` as it holds for this process now.

use super::{Account, Memlock};
use crate::sys::{self, Resource};

/// The limit, and what is counted against it already; `None` where there is no limit or it does not hold.
pub(super) fn limit(account: Account) -> Option<Memlock> {
    let limit_bytes = sys::resource_limit(Resource::Locked).ok()??;
    let status = sys::read_text("/proc/self/status").unwrap_or_default();
    let field = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.split_whitespace().next()
    };
    let capabilities = field("CapEff").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    if capabilities.is_some_and(|mask| mask & CAP_IPC_LOCK != 0) {
        return None;
    }
    let kib = |key| field(key).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
    let used_bytes = match account {
        Account::Rings => 0,
        Account::Pinned => kib("VmPin") << 10,
        Account::Locked => kib("VmLck") << 10,
    };
    Some(Memlock { account, limit_bytes, used_bytes })
}

/// The bit of the capability under which the limit does not hold.
const CAP_IPC_LOCK: u64 = 1 << 14;

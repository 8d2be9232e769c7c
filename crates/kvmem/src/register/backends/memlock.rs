//! *Memlock*: `RLIMIT_MEMLOCK`, how much of it is used, and whether it applies at all.

use crate::register::{Account, Memlock};
use crate::sys::{self, Resource};

/// `CAP_IPC_LOCK`, which turns the limit off.
const CAP_IPC_LOCK: u32 = 14;

/// Returns the limit that applies to this thread now; `None` if none is known to apply.
pub(super) fn limit(account: Account) -> Option<Memlock> {
    if exempt() { None } else { unexempted_limit(account) }
}

/// Returns the limit as it applies to a thread that is not exempt, even if this one is.
pub(super) fn unexempted_limit(account: Account) -> Option<Memlock> {
    let limit_bytes = sys::resource_limit(Resource::Locked).ok().flatten()?;
    let status = |line| status_bytes(&sys::read_text("/proc/self/status").ok()?, line);
    let used_bytes = match account {
        // The kernel charges these to the user, over all processes, and does not report them.
        Account::Rings => None,
        Account::Pinned => status("VmPin"),
        Account::Locked => status("VmLck"),
    };
    Some(Memlock { account, limit_bytes, used_bytes: used_bytes.unwrap_or(0) })
}

/// Returns whether this thread is exempt from the limit; capabilities belong to threads. The
/// capability counts only in the initial user namespace: root in a rootless container appears to
/// have it and is limited all the same. If the kernel does not tell, no limit is assumed.
pub(super) fn exempt() -> bool {
    let status = sys::read_text("/proc/thread-self/status");
    let capable = status.map_or(true, |text| has_capability(&text, CAP_IPC_LOCK));
    capable && sys::read_text("/proc/self/uid_map").map_or(true, |text| maps_all_users(&text))
}

/// Returns the value of a line of `/proc/self/status`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Returns the value of a line such as `VmLck:      64 kB`, in bytes.
fn status_bytes(text: &str, name: &str) -> Option<u64> {
    let kib: u64 = field(text, name)?.strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns whether the effective capabilities include this bit.
fn has_capability(text: &str, bit: u32) -> bool {
    let mask = field(text, "CapEff").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    mask.is_some_and(|mask| mask >> bit & 1 == 1)
}

/// Returns whether a `uid_map` is that of the initial namespace, which maps each user to itself.
/// Kernels without namespaces have no such file.
fn maps_all_users(text: &str) -> bool {
    text.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tVmLck: 7 kB\nVmPeak:\t   10056 kB\nVmLck:\t      64 kB\n\
                          VmPin:\t       0 kB\nCapEff:\t000001fffeffffff\n";

    #[test]
    fn status_lines_are_parsed() {
        assert_eq!(status_bytes(STATUS, "VmLck"), Some(64 << 10));
        assert_eq!(status_bytes(STATUS, "VmPin"), Some(0));
        for (text, name) in [
            (STATUS, "VmPea"),
            (STATUS, "Name"),
            (STATUS, "VmHWM"),
            ("VmLck:\t64 MB\n", "VmLck"),
            ("VmLck:\t-1 kB\n", "VmLck"),
            ("VmLck:\t18446744073709551615 kB\n", "VmLck"),
            ("", "VmLck"),
        ] {
            assert_eq!(status_bytes(text, name), None, "{name} of {text:?}");
        }
    }

    #[test]
    fn capabilities_are_parsed() {
        assert!(has_capability(STATUS, CAP_IPC_LOCK));
        assert!(!has_capability(STATUS, 24) && has_capability(STATUS, 40));
        assert!(has_capability("CapEff:\t0000000000004000\n", CAP_IPC_LOCK));
        for without in
            ["CapEff:\t0000000000003fff\n", "CapPrm:\t0000000000004000\n", "CapEff:\tall\n", ""]
        {
            assert!(!has_capability(without, CAP_IPC_LOCK), "{without:?}");
        }
    }

    #[test]
    fn the_initial_namespace_is_recognized() {
        assert!(maps_all_users("         0          0 4294967295\n"));
        for other in [
            "         0       1000          1\n",
            "0 100000 65536\n",
            "0 0 4294967295\n1 1 1\n",
            "",
        ] {
            assert!(!maps_all_users(other), "{other:?}");
        }
    }

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

//! *Failures*: what the library's error numbers mean.

use super::context::VerbsFailure;
use crate::arena::Errno;
use crate::register::{Limits, NotAvailable, RegisterLimit, RegistrarError};

/// Explains why memory could not be registered. `limits` are the current ones.
pub(super) fn register((call, errno): VerbsFailure, limits: &Limits, len: usize) -> RegistrarError {
    RegistrarError::new(call, errno, remedy(errno)).exceeded(exceeded(errno, limits, len as u64))
}

/// Explains why a key could not be deregistered.
pub(super) fn deregister((call, errno): VerbsFailure) -> RegistrarError {
    let remedy = match errno {
        Errno::EBUSY => "memory windows or work requests still use it: end them first",
        Errno::EIO | Errno::ENODEV => {
            "the device is gone or was reset: close it; the memory must stay mapped until then"
        }
        _ => "try again, and see what the kernel says (dmesg)",
    };
    RegistrarError::new(call, errno, remedy)
}

/// Returns the limit that was hit. The number alone is ambiguous: `ENOMEM` stands for three limits.
fn exceeded(errno: Errno, limits: &Limits, need_bytes: u64) -> Option<RegisterLimit> {
    if !matches!(
        errno,
        Errno::ENOMEM | Errno::EINVAL | Errno::EPERM | Errno::EAGAIN | Errno::ENOSPC
    ) {
        return None;
    }
    if need_bytes > limits.max_bytes {
        return Some(RegisterLimit::KeyBytes { limit_bytes: limits.max_bytes, need_bytes });
    }
    if errno == Errno::EINVAL {
        return None;
    }
    if let Some(memlock) = limits.memlock
        // With a limit of 0 the kernel returns EPERM and does not count.
        && (memlock.limit_bytes == 0
            || errno == Errno::ENOMEM
                && memlock.used_bytes.saturating_add(need_bytes) > memlock.limit_bytes)
    {
        return Some(memlock.exceeded(need_bytes));
    }
    (limits.max_keys == 0 && errno != Errno::EPERM)
        .then_some(RegisterLimit::Keys { limit: 0, need: 1 })
}

/// Returns what to do if no known limit was hit.
fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOMEM => {
            "the kernel or the device has no more memory, no more memory regions (other processes \
             have some, too) or has reached RLIMIT_MEMLOCK, which applies in a user namespace \
             whatever capabilities the process has there: free some, or raise the limit"
        }
        Errno::EINVAL => {
            "add local_write if the access has remote_write or remote_atomic; otherwise the device \
             does not support memory of this kind"
        }
        Errno::EFAULT => {
            "map all of the range for reading, and for writing if the access includes it"
        }
        Errno::EOPNOTSUPP => {
            "the device does not know one of the access flags, or the kernel does not pin pages of \
             such a file for writing: request less access, or use anonymous memory, memfd or \
             hugetlbfs"
        }
        Errno::EACCES | Errno::EPERM => {
            "check the permissions of /dev/infiniband/uverbs*, and RLIMIT_MEMLOCK (`ulimit -l`)"
        }
        Errno::EIO | Errno::ENODEV => "the device is gone or was reset: open it again",
        _ => "see the kernel's log (dmesg)",
    }
}

/// Returns what to do if a device cannot be used at all.
pub(super) fn open_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::EACCES | Errno::EPERM => {
            "give the process access to /dev/infiniband/uverbs* (permissions 0666 or the group of \
             the files; for a container --device=/dev/infiniband)"
        }
        Errno::ENOENT | Errno::ENODEV | Errno::ENOSYS => {
            "load the kernel module ib_uverbs and the module of the device; for a container \
             --device=/dev/infiniband"
        }
        Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE => {
            "raise RLIMIT_NOFILE and RLIMIT_MEMLOCK (`ulimit -n`, `ulimit -l`): opening a device \
             takes some of both"
        }
        _ => "see the kernel's log (dmesg), and `ibv_devinfo` (Debian package ibverbs-utils)",
    }
}

/// Returns the error for a library or a device that is missing.
pub(super) fn not_available(reason: String, remedy: &'static str) -> NotAvailable {
    NotAvailable::new("verbs", reason, remedy)
}

/// Returns the error for a device that exists and cannot be used.
pub(super) fn not_usable(name: &str, (call, errno): VerbsFailure) -> NotAvailable {
    not_available(format!("{name}: {call}: {errno}"), open_remedy(errno))
}

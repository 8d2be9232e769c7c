//! *Refusals*: what error numbers of the library mean.

use super::super::{Limits, RegisterLimit, RegistrarError};
use super::context::Failed;
use crate::arena::Errno;

/// Why memory was not registered. `limits` are those of now.
pub(super) fn register((call, errno): Failed, limits: &Limits, len: usize) -> RegistrarError {
    RegistrarError::new(call, errno, remedy(errno)).exceeded(exceeded(errno, limits, len as u64))
}

/// Why a key was not taken back.
pub(super) fn deregister((call, errno): Failed) -> RegistrarError {
    let remedy = match errno {
        Errno::EBUSY => "memory windows or work requests still use it: end them first",
        Errno::EIO | Errno::ENODEV => {
            "the device is gone or was reset: close it; the memory must stay mapped until then"
        }
        _ => "try again, and see what the kernel says (dmesg)",
    };
    RegistrarError::new(call, errno, remedy)
}

/// The limit that was hit. The number alone does not say: `ENOMEM` stands for three of them.
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
        // With a limit of nothing the kernel says EPERM and does not count.
        && (memlock.limit_bytes == 0
            || errno == Errno::ENOMEM && memlock.used_bytes.saturating_add(need_bytes) > memlock.limit_bytes)
    {
        return Some(RegisterLimit::Memlock {
            account: memlock.account,
            limit_bytes: memlock.limit_bytes,
            used_bytes: memlock.used_bytes,
            need_bytes,
        });
    }
    (limits.max_keys == 0 && errno != Errno::EPERM)
        .then_some(RegisterLimit::Keys { limit: 0, need: 1 })
}

/// What can be done where no limit is known to have been hit.
fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOMEM => {
            "the kernel or the device ran out: of memory, of memory regions (other processes have some too) or of RLIMIT_MEMLOCK, \
             which holds in a user namespace whatever capabilities the process has there"
        }
        Errno::EINVAL => {
            "remote_write and remote_atomic need local_write as well; else the device does not take memory of this kind"
        }
        Errno::EFAULT => {
            "all of the range must be mapped for reading, and for writing if the access says so"
        }
        Errno::EOPNOTSUPP => {
            "the device does not know one of the access flags, or the kernel does not pin pages of such a file for writing: ask \
             for less access, or use anonymous memory, memfd or hugetlbfs"
        }
        Errno::EACCES | Errno::EPERM => {
            "the process may not: see the permissions of /dev/infiniband/uverbs*, and RLIMIT_MEMLOCK (`ulimit -l`)"
        }
        Errno::EIO | Errno::ENODEV => "the device is gone or was reset: open it again",
        _ => "see what the kernel says (dmesg)",
    }
}

/// What can be done if a device cannot be used at all.
pub(super) fn open_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::EACCES | Errno::EPERM => {
            "give the process access to /dev/infiniband/uverbs* (permissions 0666 or the group of the files; for a container \
             --device=/dev/infiniband)"
        }
        Errno::ENOENT | Errno::ENODEV | Errno::ENOSYS => {
            "load the kernel module ib_uverbs and that of the device; for a container --device=/dev/infiniband"
        }
        Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE => {
            "raise RLIMIT_NOFILE and RLIMIT_MEMLOCK (`ulimit -n`, `ulimit -l`): opening a device takes some of both"
        }
        _ => "see what the kernel says (dmesg), and `ibv_devinfo` (Debian package ibverbs-utils)",
    }
}

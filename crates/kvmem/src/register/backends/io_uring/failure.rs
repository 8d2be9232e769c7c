//! *Failures of rings*: what the kernel's error numbers mean here, and what to do.

use super::table::MAX_BYTES;
use crate::register::backends::memlock;
use crate::register::{Account, Memlock, NotAvailable, RegisterLimit, RegistrarError};
use crate::sys::{self, Call, Errno};

/// The name of this backend.
pub(super) const BACKEND: &str = "io_uring";

const SECCOMP: &str = "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp \
                       profile of the container (docker run --security-opt seccomp=PROFILE)";

/// Bytes that a ring and its side ring charge for themselves.
const RING_BYTES: u64 = 16 << 10;

/// Explains why a ring cannot be created.
pub(super) fn unavailable(call: Call, errno: Errno) -> NotAvailable {
    let setting = sys::read_text("/proc/sys/kernel/io_uring_disabled").ok();
    let (reason, remedy) = match memlock::limit(Account::Rings) {
        // Kernels before 5.12 and from 6.14 on charge a ring's own memory.
        Some(limit) if errno == Errno::ENOMEM => {
            let exceeded = limit.exceeded(RING_BYTES);
            (format!("; {exceeded}"), exceeded.remedy())
        }
        _ => {
            let (reason, remedy) = explain(call, errno, setting.as_deref().map(str::trim));
            (reason.to_owned(), remedy)
        }
    };
    NotAvailable::new(BACKEND, format!("{call}: {errno}{reason}"), remedy)
}

/// Returns the cause and what to do; `setting` is the value of `kernel.io_uring_disabled`.
fn explain(call: Call, errno: Errno, setting: Option<&str>) -> (&'static str, String) {
    match (errno, setting) {
        (Errno::EPERM, Some("1")) => (
            ": kernel.io_uring_disabled is 1, which allows rings only for one group",
            "sysctl kernel.io_uring_disabled=0, or sysctl kernel.io_uring_group=$(id -g)"
                .to_owned(),
        ),
        (Errno::EPERM, Some("2")) => (
            ": kernel.io_uring_disabled is 2, which forbids rings for all users",
            "sysctl kernel.io_uring_disabled=0".to_owned(),
        ),
        (Errno::ENOSYS, _) => (
            ": the kernel does not have io_uring, or a seccomp profile hides it",
            format!("run a kernel of 5.19 or later; {SECCOMP}"),
        ),
        (Errno::EPERM | Errno::EACCES, _) => {
            (": probably a seccomp profile forbids it", SECCOMP.to_owned())
        }
        (Errno::EINVAL, _) if call == Call::RingTable => (
            ": the kernel does not support sparse tables",
            "run a kernel of 5.19 or later".to_owned(),
        ),
        (Errno::EMFILE, _) => ("", RegisterLimit::Descriptors.remedy()),
        (Errno::ENFILE, _) => (
            ": the machine has no free file descriptor",
            "raise fs.file-max (sysctl), or close files that are not needed".to_owned(),
        ),
        (Errno::ENOMEM, _) => {
            (": no memory for the ring", "free memory of the machine or of the cgroup".to_owned())
        }
        _ => ("", "try a kernel of 6.13 or later".to_owned()),
    }
}

/// Explains why an existing ring cannot be used.
pub(super) fn adopting(call: Call, errno: Errno) -> RegistrarError {
    let remedy = match errno {
        Errno::EBUSY => {
            "the ring has a table of buffers already: choose some of its slots \
             (RingTable::Existing)"
        }
        Errno::ENXIO => "the ring has no table of buffers: create one (RingTable::New)",
        Errno::EINVAL if call == Call::RingEmpty => {
            "the ring's table does not have all of these slots: choose slots that it has"
        }
        Errno::EINVAL => "a table has 1 to 16384 slots; sparse ones need a kernel of 5.19 or later",
        _ => other(errno),
    };
    RegistrarError::new(call.to_string(), errno, remedy)
}

/// Returns what to do for errors of any operation on a ring.
fn other(errno: Errno) -> &'static str {
    match errno {
        Errno::EEXIST => {
            "the ring accepts work from one thread only (IORING_SETUP_SINGLE_ISSUER): create it \
             without that flag"
        }
        Errno::EBADF | Errno::EOPNOTSUPP => {
            "the descriptor is not a ring: pass one that io_uring_setup created"
        }
        Errno::EACCES => {
            "the ring is restricted: allow it to register buffers (IORING_REGISTER_RESTRICTIONS)"
        }
        Errno::EPERM | Errno::ENOSYS => SECCOMP,
        Errno::ENOMEM => {
            "free memory of the machine or of the cgroup: the kernel has none for its metadata"
        }
        _ => "",
    }
}

/// Explains why a buffer could not be registered. `memlock` is the limit that applies to the ring.
pub(super) fn registering(
    call: Call,
    errno: Errno,
    len: usize,
    memlock: Option<Memlock>,
) -> RegistrarError {
    let failure = |remedy: &'static str| RegistrarError::new(call.to_string(), errno, remedy);
    if call != Call::RingFill {
        return failure(other(errno));
    }
    let need_bytes = len as u64;
    match errno {
        // The kernel has no error number for this limit.
        Errno::EFAULT | Errno::EINVAL | Errno::EOVERFLOW if need_bytes > MAX_BYTES => {
            failure("").exceeded(RegisterLimit::KeyBytes { limit_bytes: MAX_BYTES, need_bytes })
        }
        Errno::EFAULT if len == 0 => failure("the range is empty: register at least one byte"),
        Errno::ENOMEM if memlock.is_some() => {
            failure("").exceeded(memlock.map(|limit| limit.exceeded(need_bytes)))
        }
        Errno::EMFILE => failure("").exceeded(RegisterLimit::Descriptors),
        Errno::EFAULT | Errno::EOPNOTSUPP => failure(
            "not all of it is mapped for reading and writing, or it is a file that is not memory: \
             only anonymous memory, shared memory (tmpfs, memfd) and hugepages can be pinned for \
             long; or a page could not be allocated",
        ),
        Errno::ENOMEM => failure(
            "the machine or the cgroup has no memory for these pages or for the kernel's list of \
             them: free some, or register less",
        ),
        _ => failure(other(errno)),
    }
}

/// Returns the error for a full table.
pub(super) fn full() -> RegistrarError {
    RegistrarError::new(Call::RingFill.to_string(), Errno::ENOSPC, "")
        .exceeded(RegisterLimit::Keys { limit: 0, need: 1 })
}

/// Returns the error for a key that is not live.
pub(super) fn unknown(name: &str, handle: u64) -> RegistrarError {
    let remedy = "deregister a key once, and with the registrar that issued it";
    RegistrarError::new(Call::RingEmpty.to_string(), Errno::ENOENT, remedy)
        .detail(format!("{name} has issued no live key with the handle {handle:#x}"))
}

/// Explains why a buffer could not be deregistered.
pub(super) fn deregistering(errno: Errno) -> RegistrarError {
    RegistrarError::new(Call::RingEmpty.to_string(), errno, other(errno))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_cause_that_forbids_rings_is_named() {
        let cases = [
            (Errno::EPERM, Some("1"), "kernel.io_uring_group"),
            (Errno::EPERM, Some("2"), "kernel.io_uring_disabled=0"),
            (Errno::EPERM, Some("0"), "seccomp"),
            (Errno::EPERM, None, "seccomp"),
            (Errno::ENOSYS, Some("2"), "5.19"),
            (Errno::EMFILE, None, "RLIMIT_NOFILE"),
            (Errno::ENFILE, None, "fs.file-max"),
            (Errno::ENOMEM, None, "memory"),
        ];
        for (errno, setting, word) in cases {
            let (_, remedy) = explain(Call::IoUringSetup, errno, setting);
            assert!(remedy.contains(word), "{errno}, {setting:?}: {remedy}");
        }
        let (reason, _) = explain(Call::RingTable, Errno::EINVAL, None);
        assert!(reason.contains("sparse"), "{reason}");
    }
}

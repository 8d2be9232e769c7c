//! *Limits*: what the kernel says about this process when it is asked, not read from a file.

use std::path::Path;

use rustix::io::Errno;
pub(crate) use rustix::process::{Resource, Rlimit};

/// The size of a base page in bytes.
pub(crate) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// A resource limit of this process.
pub(crate) fn rlimit(resource: Resource) -> Rlimit {
    rustix::process::getrlimit(resource)
}

/// Size of the file system at `path`, and what an ordinary user may still write to it, both in bytes.
pub(crate) fn file_system(path: &Path) -> Result<(u64, u64), Errno> {
    let space = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    Ok((bytes(space.f_blocks), bytes(space.f_bavail)))
}

/// How many processors the scheduler may put this thread on. `EINVAL` where the machine has more than 1,024.
pub(crate) fn cpus_allowed() -> Result<u32, Errno> {
    rustix::thread::sched_getaffinity(None).map(|set| set.count())
}

/// Whether this process may make an io_uring, found out by asking for one that cannot be.
pub(crate) fn io_uring_allowed() -> Result<(), Errno> {
    let mut params = rustix::io_uring::io_uring_params::default();
    // SAFETY: `params.flags` is empty, so no descriptor in it has to be open; the kernel writes to `params` alone.
    let ring = unsafe { rustix::io_uring::io_uring_setup(0, &mut params) };
    match ring {
        // No ring has no entries: who is told that much has passed every check of permission.
        Ok(_) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(error),
    }
}

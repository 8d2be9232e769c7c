//! *Process calls*: limits, cores, threads.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use super::{Call, Errno, Result, check, gate};

/// A limit of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// `RLIMIT_AS`: addresses.
    AddressSpace,
    /// `RLIMIT_DATA`: private writable memory.
    Data,
    /// `RLIMIT_MEMLOCK`: locked memory.
    Locked,
    /// `RLIMIT_FSIZE`: the size of a file.
    FileSize,
}

/// The soft limit in bytes; `None` where there is none.
pub(crate) fn resource_limit(resource: Resource) -> Result<Option<u64>> {
    resource_limits(resource).map(|(soft, _)| soft)
}

/// The soft and the hard limit in bytes; `None` where there is none.
pub(crate) fn resource_limits(resource: Resource) -> Result<(Option<u64>, Option<u64>)> {
    gate(Call::GetLimit)?;
    let number = match resource {
        Resource::AddressSpace => libc::RLIMIT_AS,
        Resource::Data => libc::RLIMIT_DATA,
        Resource::Locked => libc::RLIMIT_MEMLOCK,
        Resource::FileSize => libc::RLIMIT_FSIZE,
    };
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the output has the type that the call fills.
    check(unsafe { libc::getrlimit(number, limit.as_mut_ptr()) }.into())?;
    // SAFETY: the call succeeded, so it has filled all of it.
    let libc::rlimit { rlim_cur, rlim_max } = unsafe { limit.assume_init() };
    let finite = |limit: u64| (limit != libc::RLIM_INFINITY).then_some(limit);
    Ok((finite(rlim_cur), finite(rlim_max)))
}

/// How many cores the process may run on.
pub(crate) fn affinity() -> Result<usize> {
    gate(Call::Affinity)?;
    // The kernel refuses a mask that is shorter than its own; 64 Ki cores are more than it can be built for.
    let mut mask = vec![0u64; 1024];
    // SAFETY: the mask is as long as the call says.
    let bytes =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&mask[..]), mask.as_mut_ptr()) };
    check(bytes)?;
    Ok(mask.iter().map(|word| word.count_ones() as usize).sum())
}

/// The number of this process. After a fork it is another one.
pub(crate) fn process_id() -> u32 {
    std::process::id()
}

/// Has a function called when the process ends in the ordinary way. If there is no room for it, it is not.
#[cfg(not(loom))]
pub(crate) fn at_exit(call: extern "C" fn()) {
    // SAFETY: the function is there as long as the process.
    let _ = unsafe { libc::atexit(call) };
}

/// Starts a thread with a small stack.
pub(crate) fn spawn<T, F>(name: &str, run: F) -> Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    gate(Call::Spawn)?;
    builder(name).spawn(run).map_err(|error: io::Error| Errno::of(&error))
}

/// Starts a thread with a small stack that ends within the scope.
pub(crate) fn spawn_scoped<'scope, 'env, T, F>(
    scope: &'scope Scope<'scope, 'env>,
    name: &str,
    run: F,
) -> Result<ScopedJoinHandle<'scope, T>>
where
    F: FnOnce() -> T + Send + 'scope,
    T: Send + 'scope,
{
    gate(Call::Spawn)?;
    builder(name).spawn_scoped(scope, run).map_err(|error: io::Error| Errno::of(&error))
}

fn builder(name: &str) -> Builder {
    Builder::new().name(name.to_owned()).stack_size(256 << 10)
}

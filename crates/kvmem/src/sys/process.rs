//! *Process calls*: limits, cores, threads and the environment.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use super::call::Call;
use super::errno::Errno;
use super::errno::{Result, check};
use super::gate::gate;

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

/// Returns the soft limit in bytes; `None` if there is none.
pub(crate) fn resource_limit(resource: Resource) -> Result<Option<u64>> {
    resource_limits(resource).map(|(soft, _)| soft)
}

/// Returns the soft and the hard limit in bytes; `None` if there is none.
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

/// Returns the number of cores that the process may run on.
pub(crate) fn affinity() -> Result<usize> {
    gate(Call::Affinity)?;
    // The kernel rejects a mask shorter than its own; 64 Ki cores exceed every Linux build.
    let mut mask = vec![0u64; 1024];
    // SAFETY: the mask is as long as the call says.
    let bytes = unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&mask[..]), mask.as_mut_ptr())
    };
    check(bytes)?;
    Ok(mask.iter().map(|word| word.count_ones() as usize).sum())
}

/// Adds an entry (`NAME=value`) to the environment, for libraries that are loaded later. The
/// environment must have no entry of this name.
///
/// `setenv` may free the table of entries while another thread reads it with `getenv`. This
/// function leaves the old table and its entries in place: a reader sees the old table or the new
/// one.
pub(crate) fn add_to_environment(entry: &'static CStr) {
    use std::ffi::c_char;
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicPtr, Ordering};

    /// The newest table. `setenv` may replace it in `environ`; leak detectors still find it here,
    /// because `used` keeps the compiler from dropping a variable that nobody reads.
    #[used]
    static NEWEST: AtomicPtr<*mut c_char> = AtomicPtr::new(null_mut());

    unsafe extern "C" {
        static mut environ: *mut *mut c_char;
    }
    // SAFETY: the C library's variable, aligned as a pointer. This function accesses it atomically,
    // the C library with plain loads and stores of one machine word.
    let table = unsafe { AtomicPtr::from_ptr(&raw mut environ) };
    // Acquire pairs with the Release below, in case two threads are here.
    let old = table.load(Ordering::Acquire);
    let mut entries = Vec::new();
    if !old.is_null() {
        // SAFETY: the table ends with a null pointer, and no entry after that is read. The
        // environment does not change meanwhile: callers of `setenv` and
        // `std::env::set_var` promise that no other thread reads it, as this one and
        // `getenv` do.
        entries
            .extend((0..).map(|at| unsafe { *old.add(at) }).take_while(|entry| !entry.is_null()));
    }
    entries.extend([entry.as_ptr().cast_mut(), null_mut()]);
    let entries = entries.leak().as_mut_ptr();
    // Relaxed: no thread reads it.
    NEWEST.store(entries, Ordering::Relaxed);
    // Release pairs with the Acquire above: a thread that finds the table finds its entries.
    table.store(entries, Ordering::Release);
}

/// Returns whether the process has more rights than the user that has started it: those of a
/// set-user-ID bit or of capabilities of its file. Its environment is that user's.
pub(crate) fn has_more_rights_than_its_user() -> bool {
    // SAFETY: reads a number that the kernel has passed to the process; 0 if it has passed none.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the process id, which changes in a forked child.
pub(crate) fn process_id() -> u32 {
    std::process::id()
}

/// Returns the effective user of this process.
pub(crate) fn user_id() -> u32 {
    // SAFETY: the call has no arguments and always succeeds.
    unsafe { libc::geteuid() }
}

/// Registers a function to be called when the process exits normally. Does nothing if the C library
/// has no room for it.
pub(crate) fn at_exit(call: extern "C" fn()) {
    // SAFETY: the function exists until the process ends.
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

/// Starts a thread with a small stack within a scope.
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

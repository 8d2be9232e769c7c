//! *Child*: a forked process, for tests.

/// Runs `child` in a forked child and returns its exit status. After 20 s a signal ends it.
///
/// The child may use only objects that support a fork, and such as no other thread uses meanwhile.
///
/// # Panics
/// If a signal ends the child.
pub(crate) fn forked(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child takes only locks of this crate and of the C library, which are free after a
    // fork, and those that no other thread uses meanwhile; it ends with _exit.
    match unsafe { libc::fork() } {
        // SAFETY: ends the child at once.
        0 => unsafe {
            libc::alarm(20);
            libc::_exit(child())
        },
        pid => {
            let mut status = 0;
            // SAFETY: waits for this process's own child.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

//! A forked child of a test, which ends in time.

/// Runs `child` in a forked child and returns its exit status. The child uses only objects that are
/// ready for a fork. After 20 s a signal ends it.
///
/// # Panics
/// If a signal ends the child.
pub(crate) fn forked(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child uses objects that are ready for a fork, and ends with _exit.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: neither call has a condition; _exit runs no code of the parent's.
            unsafe {
                libc::alarm(20);
                libc::_exit(child())
            }
        }
        pid => {
            let mut status = 0;
            // SAFETY: waits for our own child.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

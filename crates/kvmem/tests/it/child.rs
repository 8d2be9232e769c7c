//! Forked children of tests, with a time limit.

/// Runs `child` in a forked child and returns its exit status. The child may use only objects
/// that support a fork. After 20 s a signal ends it.
///
/// # Panics
/// If a signal ends the child.
pub(crate) fn forked(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child uses objects that support a fork, and ends with _exit.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: neither call has a precondition; _exit runs no code of the parent.
            unsafe {
                libc::alarm(20);
                libc::_exit(child())
            }
        }
        pid => {
            let mut status = 0;
            // SAFETY: the call waits for a child of this process.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

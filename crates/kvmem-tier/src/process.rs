//! *Process*: a tier belongs to the process that opened it.
//!
//! A forked child has copies of the parent's locks, which threads may hold that the child does not
//! have, a copy of the index that ages at once, and the parent's rings and file. Each call
//! therefore checks first whether the process is still the one that opened the device.

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    /// Returns the current process.
    pub(crate) fn this() -> Self {
        Process(std::process::id())
    }

    /// Returns whether this process is a forked child of that one. Takes one system call.
    pub(crate) fn is_forked(self) -> bool {
        self.0 != std::process::id()
    }
}

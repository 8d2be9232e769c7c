//! [`Process`]: a cache, or a queue, belongs to the process that made it.
//!
//! A forked child has no memory at the addresses of its parent's blocks, and its copies of the
//! cache's locks may be held by threads that it does not have. Each call therefore checks first
//! whether the process is still the one that made the cache. In a child the cache behaves like an
//! empty cache that accepts nothing: it takes no lock, frees nothing and reads no table, because a
//! thread of the parent may have been changing the table.

use super::generation::{count_forks, generation};

/// The process in which something was made. 4 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    generation: u32,
}

impl Process {
    /// Returns the current process.
    pub(crate) fn this() -> Self {
        count_forks();
        Process { generation: generation() }
    }

    /// Returns whether this process is a forked child of that one.
    #[inline]
    pub(crate) fn is_forked(self) -> bool {
        self.generation != generation()
    }
}

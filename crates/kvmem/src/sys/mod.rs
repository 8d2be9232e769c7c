//! The seam to the kernel: every system call of the library stands in this folder.

pub(crate) mod map_small;

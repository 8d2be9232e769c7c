//! *System*: every call into the kernel; nothing else of the library speaks to it.

pub(crate) mod limits;

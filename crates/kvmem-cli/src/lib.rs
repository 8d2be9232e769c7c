//! The logic of the `kvmem` command; see [`replay`].

pub mod replay;

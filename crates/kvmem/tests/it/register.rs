//! L2: keys.

mod cuda;
mod verbs;
mod fixed;
mod io_uring;
mod mlock;

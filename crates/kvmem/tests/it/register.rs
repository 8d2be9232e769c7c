//! L2: keys.

mod cuda;
mod fixed;
mod io_uring;
mod mlock;
mod simulated;
mod verbs;

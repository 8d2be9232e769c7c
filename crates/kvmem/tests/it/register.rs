//! L2: keys.

mod verbs;
mod fixed;
mod io_uring;
mod mlock;

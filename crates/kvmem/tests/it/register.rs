//! L2: keys.

mod fixed;
mod io_uring;
mod mlock;

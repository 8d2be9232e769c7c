//! *Retry*: repeats a system call while signals interrupt it.

use crate::sys::{self, Errno};

/// Makes a call, and repeats it while it is interrupted.
pub(super) fn retry<T>(mut call: impl FnMut() -> sys::Result<T>) -> sys::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

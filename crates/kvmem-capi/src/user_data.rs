//! *User data*: the pointer that a program passes with its functions.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

/// Releases user data: called once, when no object uses them any more.
pub(crate) type ReleaseFn = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// User data of functions of the program, and the function that releases them.
pub(crate) struct UserData {
    user: *mut c_void,
    release: ReleaseFn,
    /// Whether the object of the functions exists. Before that, the caller owns the user data.
    owned: AtomicBool,
}

// SAFETY: promise 3 of the C caller: its functions may run, with the user data, on any thread.
unsafe impl Send for UserData {}
// SAFETY: a shared reference lends the pointer alone. `release` runs in `drop`, which no shared
// reference survives.
unsafe impl Sync for UserData {}

impl UserData {
    /// Wraps user data, which stay the caller's until [`own`](Self::own).
    pub(crate) fn new(user: *mut c_void, release: ReleaseFn) -> UserData {
        UserData { user, release, owned: AtomicBool::new(false) }
    }

    /// Returns the pointer.
    pub(crate) fn pointer(&self) -> *mut c_void {
        self.user
    }

    /// Takes ownership of the user data: they are released on drop.
    pub(crate) fn own(&self) {
        // Relaxed: dropping the last reference acquires all earlier writes through the others.
        self.owned.store(true, Ordering::Relaxed);
    }
}

impl Drop for UserData {
    fn drop(&mut self) {
        // Relaxed: dropping the last reference acquires the write in `own`.
        if let Some(release) = self.release.filter(|_| self.owned.load(Ordering::Relaxed)) {
            // SAFETY: promise 3 of the C caller: the function has this type, and the user data are
            // valid until it has run, which happens once, here.
            unsafe { release(self.user) }
        }
    }
}

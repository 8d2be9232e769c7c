//! *Errno*: error numbers of the kernel.

use serde::{Deserialize, Serialize};
use std::{fmt, io};

/// An error number of the kernel. It is displayed with its meaning, and with its name if this
/// library knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Errno(i32);

macro_rules! names {
    ($($name:ident)*) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub const $name: Errno = Errno(libc::$name);
            )*

            /// Returns its name in C, if it is one of the constants above.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $(libc::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

names! {
    EACCES EAGAIN EBADF EBUSY EEXIST EFAULT EFBIG EHWPOISON EINTR EINVAL EIO EMFILE ENFILE ENODEV
    ENOENT ENOMEM ENOSPC ENOSYS ENOTTY ENXIO EOPNOTSUPP EOVERFLOW EPERM ESRCH
}

impl Errno {
    /// Makes an error from its number.
    #[must_use]
    pub const fn new(number: i32) -> Errno {
        Errno(number)
    }

    /// Returns its number.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0
    }

    /// Returns the error of this thread's last call.
    pub(crate) fn last() -> Errno {
        Errno::of(&io::Error::last_os_error())
    }

    /// Clears the error of this thread's last call. For calls of foreign libraries that claim to
    /// set `errno`: a value found afterwards is theirs.
    pub(crate) fn clear() {
        // SAFETY: the address is that of this thread's own variable.
        unsafe { *libc::__errno_location() = 0 };
    }

    pub(crate) fn of(error: &io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text ends with "(os error N)", which is enough if the error has no name.
        let text = io::Error::from_raw_os_error(self.0).to_string();
        match self.name() {
            Some(name) => write!(f, "{name}: {}", text.split(" (os error").next().unwrap_or(&text)),
            None => f.write_str(&text),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.0)
    }
}

/// The result of a system call.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// Converts the result of a C function that returns −1 and sets `errno`.
pub(super) fn check(returned: libc::c_long) -> Result<usize> {
    usize::try_from(returned).map_err(|_| Errno::last())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn errors_display_name_and_meaning() {
        assert_eq!(Errno::ENOMEM.to_string(), "ENOMEM: Cannot allocate memory");
        assert_eq!(format!("{:?}", Errno::EHWPOISON), "EHWPOISON");
        assert!(Errno::new(libc::EXDEV).to_string().contains("os error"));
    }
}

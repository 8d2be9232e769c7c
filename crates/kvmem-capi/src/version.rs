//! *Version*: of the header, and of the loaded library.

use std::ffi::{CStr, c_char};

/// Version of this header: major number.
pub const KVMEM_VERSION_MAJOR: u32 = 0;
/// Version of this header: minor number. While the major number is 0, the interface changes with
/// the minor number.
pub const KVMEM_VERSION_MINOR: u32 = 1;
/// Version of this header: patch number.
pub const KVMEM_VERSION_PATCH: u32 = 0;

/// Returns the version of the loaded library, such as "0.1.0". Never NULL; valid for the life of
/// the process. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn kvmem_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL"),
        };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_version_of_the_crate() {
        let header = format!("{KVMEM_VERSION_MAJOR}.{KVMEM_VERSION_MINOR}.{KVMEM_VERSION_PATCH}");
        assert_eq!(header, env!("CARGO_PKG_VERSION"));
    }
}

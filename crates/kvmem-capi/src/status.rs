//! *Status*: the result of every call.

use std::ffi::{CStr, c_char};

/// Makes the statuses and their names of a table.
///
/// cbindgen does not see them: the test that writes `kvmem.h` reads the table as text.
macro_rules! statuses {
    ($(#[$about:meta])* $enum:ident; $($(#[$doc:meta])* $status:ident = $number:literal,)*) => {
        $(#[$about])*
        #[repr(i32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $enum {
            $($(#[$doc])* $status = $number,)*
        }

        fn name(status: i32) -> &'static CStr {
            const fn text(bytes: &'static [u8]) -> &'static CStr {
                match CStr::from_bytes_with_nul(bytes) {
                    Ok(text) => text,
                    Err(_) => panic!("the only NUL is at the end"),
                }
            }
            match status {
                $($number => const { text(concat!(stringify!($status), "\0").as_bytes()) },)*
                _ => c"KVMEM_UNKNOWN_STATUS",
            }
        }
    };
}

statuses! {
    /// The result of a call. 0 is success. `kvmem_last_error()` returns the text of the last
    /// failure, with its numbers.
    ///
    /// Unless a function's comment says otherwise, a failed call changes nothing and writes to none
    /// of its out-parameters. The numbers do not change between versions; new ones may be added.
    kvmem_status;

    /// Success.
    KVMEM_OK = 0,
    /// A required pointer is NULL.
    KVMEM_ERR_NULL_ARGUMENT = 1,
    /// The handle names no object: it was never returned, it was destroyed, or it is of another
    /// type.
    KVMEM_ERR_BAD_HANDLE = 2,
    /// An argument or option is not valid: an unknown flag, a malformed text, a number out of
    /// range.
    KVMEM_ERR_INVALID_ARGUMENT = 3,
    /// The size is 0; at least 1 byte is required.
    KVMEM_ERR_ZERO_SIZE = 4,
    /// The alignment is not a power of two.
    KVMEM_ERR_BAD_ALIGN = 5,
    /// The request is longer than this object can ever allocate, even when empty.
    KVMEM_ERR_TOO_LARGE = 6,
    /// No free range is long enough now. The request may succeed after something is freed.
    KVMEM_ERR_OUT_OF_SPACE = 7,
    /// The limit of ranges, used and free, is reached.
    KVMEM_ERR_TOO_MANY_RANGES = 8,
    /// The bytes behind the allocation are not free, so it cannot be extended in place.
    KVMEM_ERR_CANNOT_EXTEND = 9,
    /// The range does not lie within the object.
    KVMEM_ERR_OUT_OF_BOUNDS = 10,
    /// The allocation was freed before, or never existed.
    KVMEM_ERR_STALE_ALLOCATION = 11,
    /// The allocation or reference belongs to another allocator or pool.
    KVMEM_ERR_FOREIGN_ALLOCATION = 12,
    /// The ready part of the pool has no free range that is long enough; more parts are being
    /// prepared.
    KVMEM_ERR_NOT_READY = 13,
    /// The system has no memory, or no pages of the requested kind.
    KVMEM_ERR_NO_MEMORY = 14,
    /// A system call failed.
    KVMEM_ERR_SYSTEM = 15,
    /// A limit of the machine, the process, a device or a namespace is reached.
    KVMEM_ERR_LIMIT = 16,
    /// The backend, device or facility does not exist here.
    KVMEM_ERR_NOT_AVAILABLE = 17,
    /// The call was cancelled.
    KVMEM_ERR_CANCELLED = 18,
    /// The time budget is used up.
    KVMEM_ERR_TIMED_OUT = 19,
    /// No registrar has this name.
    KVMEM_ERR_NO_SUCH_DEVICE = 20,
    /// No single key covers the range.
    KVMEM_ERR_STRADDLES = 21,
    /// The keys were given back before.
    KVMEM_ERR_DEREGISTERED = 22,
    /// The memory is private and must be shared, or is shared and must be private.
    KVMEM_ERR_WRONG_BACKING = 23,
    /// The pool was attached, or the client connected, for reading only.
    KVMEM_ERR_READ_ONLY = 24,
    /// Another user holds the object or range, so it cannot be changed or taken over.
    KVMEM_ERR_IN_USE = 25,
    /// This object does not support the operation.
    KVMEM_ERR_UNSUPPORTED = 26,
    /// No value or allocation exists under this key or slot.
    KVMEM_ERR_NOT_FOUND = 27,
    /// The pool has no free range that is long enough, and the cache has no value that can be
    /// evicted.
    KVMEM_ERR_NOTHING_TO_EVICT = 28,
    /// A registrar failed to register memory.
    KVMEM_ERR_REGISTER_FAILED = 29,
    /// A registrar failed to take keys back; their memory stays mapped.
    KVMEM_ERR_DEREGISTER_FAILED = 30,
    /// An invariant does not hold: a defect of this library.
    KVMEM_ERR_CHECK_FAILED = 31,
    /// The buffer is too small for the text or list; the part that fits was written.
    KVMEM_ERR_BUFFER_TOO_SMALL = 32,
    /// A defect of this library: the call panicked. Its object is poisoned.
    KVMEM_ERR_PANICKED = 33,
    /// An earlier call on this object returned KVMEM_ERR_PANICKED; the object can only be
    /// destroyed.
    KVMEM_ERR_POISONED = 34,
    /// The lower tier failed to remove what the cache removed.
    KVMEM_ERR_INVALIDATE_FAILED = 36,
    /// The object was made before this process was forked and belongs to the parent. Destroy the
    /// handle, and make a new object in this process.
    KVMEM_ERR_FORKED = 37,
    /// The file is no disk tier that can be used: it holds something else, is damaged, or is of a
    /// later version. Nothing was overwritten.
    KVMEM_ERR_BAD_TIER = 38,
    /// No server answers at the socket, and none did within the time that the client waits. The
    /// next call connects again.
    KVMEM_ERR_DISCONNECTED = 39,
    /// The server has other memory than the one before: all values are gone. Destroy the client,
    /// and connect again.
    KVMEM_ERR_MEMORY_REPLACED = 40,
    /// The client was silent for longer than the server's lease: the reservation has ended. Release
    /// it.
    KVMEM_ERR_FENCED = 41,
    /// The bytes of the value do not have the checksum that its writer has calculated.
    KVMEM_ERR_DAMAGED = 42,
    /// The server is of another release of kvmem, or its answer is not possible.
    KVMEM_ERR_PROTOCOL = 43,
    /// The server does not serve this user so, or belongs to a user that the client does not trust.
    KVMEM_ERR_PERMISSION = 44,
}

pub(crate) use kvmem_status::*;

/// Returns the name of a status, such as "KVMEM_ERR_OUT_OF_SPACE", or "KVMEM_UNKNOWN_STATUS" for a
/// number that is no status. Never NULL; valid for the life of the process. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn kvmem_status_name(status: i32) -> *const c_char {
    name(status).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_name() {
        assert_eq!((name(0), name(44)), (c"KVMEM_OK", c"KVMEM_ERR_PERMISSION"));
        assert!(
            (0..=44)
                .filter(|status| *status != 35)
                .all(|status| name(status) != c"KVMEM_UNKNOWN_STATUS")
        );
        assert_eq!((name(45), name(-1)), (c"KVMEM_UNKNOWN_STATUS", c"KVMEM_UNKNOWN_STATUS"));
    }
}

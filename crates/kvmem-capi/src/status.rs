//! *Status*: what every call says of itself.

use std::ffi::{CStr, c_char};

/// What became of a call. 0 is success; the text of the last failure, with its numbers, is
/// `kvmem_last_error()`.
///
/// Unless a function says otherwise, a call that fails has changed nothing, and has written to none
/// of its out-parameters. Numbers do not change from version to version; new ones may come.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvmem_status {
    /// It went well.
    KVMEM_OK = 0,
    /// A pointer that has to point somewhere is NULL.
    KVMEM_NULL_ARGUMENT = 1,
    /// A handle that names nothing: never made, destroyed before, or of another kind.
    KVMEM_BAD_HANDLE = 2,
    /// An argument or option that makes no sense: a flag, a text, a number out of its range.
    KVMEM_INVALID_ARGUMENT = 3,
    /// A size of 0 where at least 1 byte is needed.
    KVMEM_ZERO_SIZE = 4,
    /// An alignment that is no power of two.
    KVMEM_BAD_ALIGN = 5,
    /// A request that can never be met here, however empty it is.
    KVMEM_TOO_LARGE = 6,
    /// No room now; there may be when something is freed.
    KVMEM_NO_ROOM = 7,
    /// As many ranges as the books may have.
    KVMEM_BOOKS_FULL = 8,
    /// An allocation cannot be extended where it stands.
    KVMEM_BLOCKED = 9,
    /// A range that is not within what it was asked of.
    KVMEM_OUT_OF_BOUNDS = 10,
    /// An allocation that was freed before, or never made.
    KVMEM_STALE_ALLOCATION = 11,
    /// An allocation, or reference, of another allocator or pool.
    KVMEM_FOREIGN_ALLOCATION = 12,
    /// No room in what is ready yet; more is being made ready.
    KVMEM_NOT_READY = 13,
    /// The system has no memory, or no pages of the kind asked for.
    KVMEM_NO_MEMORY = 14,
    /// A system call was refused.
    KVMEM_SYSTEM = 15,
    /// A limit of the machine, the process or a device stands in the way.
    KVMEM_LIMIT = 16,
    /// A backend, device or facility that is not there.
    KVMEM_NOT_AVAILABLE = 17,
    /// It was cancelled.
    KVMEM_CANCELLED = 18,
    /// The time it was given is over.
    KVMEM_TIMED_OUT = 19,
    /// No registrar of this name.
    KVMEM_NO_SUCH_DEVICE = 20,
    /// A range for which there is no single key.
    KVMEM_STRADDLES = 21,
    /// The keys have been given back.
    KVMEM_ENDED = 22,
    /// The memory is this process's alone, or is shared where it must not be.
    KVMEM_WRONG_BACKING = 23,
    /// It was attached to be read.
    KVMEM_READ_ONLY = 24,
    /// Somebody else uses it, so it cannot be changed or taken.
    KVMEM_IN_USE = 25,
    /// What it is asked of cannot do this.
    KVMEM_UNSUPPORTED = 26,
    /// Nothing is held under the key.
    KVMEM_NOT_FOUND = 27,
    /// No room, and nothing that could be evicted.
    KVMEM_NOTHING_TO_EVICT = 28,
    /// A registrar refused.
    KVMEM_REFUSED = 29,
    /// A registrar did not take keys back; their memory stays mapped.
    KVMEM_KEPT = 30,
    /// An invariant does not hold: a defect of this library.
    KVMEM_CHECK_FAILED = 31,
    /// The buffer is too short for the text or list; as much as fits was written.
    KVMEM_BUFFER_TOO_SMALL = 32,
    /// The call met a defect of this library and was ended. What it was about is poisoned.
    KVMEM_PANICKED = 33,
    /// An earlier call on this object ended with KVMEM_PANICKED; it can only be destroyed.
    KVMEM_POISONED = 34,
    /// The lease was broken: something was put, removed or cleared under the key since it was
    /// taken.
    KVMEM_SUPERSEDED = 35,
    /// The program's function has not told a lower tier to forget.
    KVMEM_NOT_FORGOTTEN = 36,
    /// The object was made before this process was forked, and is its parent's: destroy the handle,
    /// and make a new one here.
    KVMEM_FORKED = 37,
}

pub(crate) use kvmem_status::*;

/// The name of a status, such as "KVMEM_NO_ROOM"; "KVMEM_UNKNOWN_STATUS" for a number that is none.
/// Never NULL, valid for ever. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn kvmem_status_name(status: i32) -> *const c_char {
    name(status).as_ptr()
}

fn name(status: i32) -> &'static CStr {
    macro_rules! names {
        ($($status:ident)*) => {
            match status {
                $(status if status == $status as i32 => {
                    const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($status), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("it ends with the only NUL"),
                    };
                    NAME
                })*
                _ => c"KVMEM_UNKNOWN_STATUS",
            }
        };
    }
    names!(
        KVMEM_OK KVMEM_NULL_ARGUMENT KVMEM_BAD_HANDLE KVMEM_INVALID_ARGUMENT KVMEM_ZERO_SIZE KVMEM_BAD_ALIGN KVMEM_TOO_LARGE
        KVMEM_NO_ROOM KVMEM_BOOKS_FULL KVMEM_BLOCKED KVMEM_OUT_OF_BOUNDS KVMEM_STALE_ALLOCATION KVMEM_FOREIGN_ALLOCATION
        KVMEM_NOT_READY KVMEM_NO_MEMORY KVMEM_SYSTEM KVMEM_LIMIT KVMEM_NOT_AVAILABLE KVMEM_CANCELLED KVMEM_TIMED_OUT
        KVMEM_NO_SUCH_DEVICE KVMEM_STRADDLES KVMEM_ENDED KVMEM_WRONG_BACKING KVMEM_READ_ONLY KVMEM_IN_USE KVMEM_UNSUPPORTED
        KVMEM_NOT_FOUND KVMEM_NOTHING_TO_EVICT KVMEM_REFUSED KVMEM_KEPT KVMEM_CHECK_FAILED KVMEM_BUFFER_TOO_SMALL
        KVMEM_PANICKED KVMEM_POISONED KVMEM_SUPERSEDED KVMEM_NOT_FORGOTTEN KVMEM_FORKED
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_name() {
        assert_eq!((name(0), name(37)), (c"KVMEM_OK", c"KVMEM_FORKED"));
        assert!((0..=37).all(|status| name(status) != c"KVMEM_UNKNOWN_STATUS"));
        assert_eq!((name(38), name(-1)), (c"KVMEM_UNKNOWN_STATUS", c"KVMEM_UNKNOWN_STATUS"));
    }
}

//! *Last error*: the text of the failure that this thread met last.
//!
//! The value is put by, and made a text when it is asked for: most refusals (no room, not found)
//! are looked at by their number only. Requests that fail because a space is full are the most
//! frequent ones by far. They have a place of their own, which needs no destructor, so that putting
//! one by is a few stores.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};

use kvmem::offset::AllocError;

use crate::fail::{Fail, of_alloc};
use crate::status::*;

thread_local! {
    static LAST: Cell<Option<Fail>> = const { Cell::new(None) };
    /// A failure that is newer than that in `LAST`, if there is one.
    static NEWEST: Cell<Option<AllocError>> = const { Cell::new(None) };
    /// What was handed out last.
    static TEXT: RefCell<CString> = RefCell::new(CString::default());
}

/// Puts a failure by, and says its number.
#[cold]
#[inline(never)]
pub(crate) fn put(fail: Fail) -> kvmem_status {
    let status = fail.status();
    NEWEST.set(None);
    // A thread that is ending has nobody to ask.
    let _ = LAST.try_with(|last| last.set(Some(fail)));
    status
}

/// Puts by that a request cannot be met, and says its number.
#[inline(always)]
pub(crate) fn put_early(error: AllocError) -> kvmem_status {
    NEWEST.set(Some(error));
    of_alloc(&error)
}

/// The text of the failure that this thread met last, with the numbers in it and the way out; "" if
/// it has met none.
///
/// Never NULL. The text is good until the same thread calls this function again, or ends. A call
/// that succeeds does not change it.
#[unsafe(no_mangle)]
pub extern "C" fn kvmem_last_error() -> *const c_char {
    let text = TEXT.try_with(|text| {
        let newest = NEWEST.take().map(Fail::from);
        let last = LAST.try_with(Cell::take).ok().flatten();
        if let Some(fail) = newest.or(last) {
            let said = fail.to_string().replace('\0', "\u{fffd}");
            *text.borrow_mut() = CString::new(said).unwrap_or_default();
        }
        text.borrow().as_ptr()
    });
    text.unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn said() -> String {
        // SAFETY: it is never NULL, and good until the next call in this thread.
        unsafe { CStr::from_ptr(kvmem_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn the_newest_failure_is_the_one_that_is_told() {
        // A thread of its own, which has met none yet.
        let told = std::thread::spawn(|| {
            let full = AllocError::OutOfSpace { requested: 600, free: 400, largest_free: 300 };
            assert_eq!(said(), "");
            assert_eq!(put_early(full), KVMEM_NO_ROOM);
            assert_eq!((said(), said()), (full.to_string(), full.to_string()));
            // Each of the two places may have the newer one.
            assert_eq!(put(Fail::Null("out_block")), KVMEM_NULL_ARGUMENT);
            assert_eq!(said(), "out_block is NULL");
            put(Fail::Null("out_block"));
            assert_eq!(put_early(AllocError::ZeroSize), KVMEM_ZERO_SIZE);
            assert_eq!(said(), AllocError::ZeroSize.to_string());
            put_early(full);
            put(Fail::Null("key"));
            assert_eq!((said(), said()), ("key is NULL".to_owned(), "key is NULL".to_owned()));
        });
        told.join().expect("no assertion failed");
    }
}

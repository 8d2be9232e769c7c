//! *Last error*: the text of this thread's last failure.
//!
//! A failure is recorded as a value and formatted only when the program asks for the text, because
//! programs test most failures (out of space, not found) by status alone. Requests that fail
//! because a space is full are by far the most frequent. They have a slot of their own without a
//! destructor, so recording one takes a few stores.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};

use kvmem::offset::AllocError;

use crate::error::{CallError, alloc_status};
use crate::status::*;

thread_local! {
    static LAST: Cell<Option<CallError>> = const { Cell::new(None) };
    /// The last failure, if it is newer than the one in `LAST`.
    static LAST_ALLOC: Cell<Option<AllocError>> = const { Cell::new(None) };
    /// The text that was returned last.
    static TEXT: RefCell<CString> = RefCell::new(CString::default());
}

/// Records a failure and returns its status.
#[cold]
#[inline(never)]
pub(crate) fn record(error: CallError) -> kvmem_status {
    let status = error.status();
    LAST_ALLOC.set(None);
    // A thread that is ending cannot ask for the text any more.
    let _ = LAST.try_with(|last| last.set(Some(error)));
    status
}

/// Records that a request cannot be met, and returns the status.
#[inline(always)]
pub(crate) fn record_alloc(error: AllocError) -> kvmem_status {
    LAST_ALLOC.set(Some(error));
    alloc_status(&error)
}

/// Returns the text of this thread's last failure: what failed, the numbers, and what to do; "" if
/// no call of this thread has failed.
///
/// Never NULL. The text is valid until the same thread calls this function again, or ends. A call
/// that succeeds does not change it.
#[unsafe(no_mangle)]
pub extern "C" fn kvmem_last_error() -> *const c_char {
    let text = TEXT.try_with(|text| {
        let newest = LAST_ALLOC.take().map(CallError::from);
        let last = LAST.try_with(Cell::take).ok().flatten();
        if let Some(error) = newest.or(last) {
            let last_text = error.to_string().replace('\0', "\u{fffd}");
            *text.borrow_mut() = CString::new(last_text).unwrap_or_default();
        }
        text.borrow().as_ptr()
    });
    text.unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn last_text() -> String {
        // SAFETY: never NULL, and valid until the next call in this thread.
        unsafe { CStr::from_ptr(kvmem_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn the_newest_failure_is_reported() {
        // A new thread has no failure yet.
        let checks = std::thread::spawn(|| {
            let full = AllocError::OutOfSpace { requested: 600, free: 400, largest_free: 300 };
            assert_eq!(last_text(), "");
            assert_eq!(record_alloc(full), KVMEM_ERR_OUT_OF_SPACE);
            assert_eq!((last_text(), last_text()), (full.to_string(), full.to_string()));
            // The newer failure may be in either slot.
            assert_eq!(record(CallError::Null("out_block")), KVMEM_ERR_NULL_ARGUMENT);
            assert_eq!(last_text(), "out_block is NULL");
            record(CallError::Null("out_block"));
            assert_eq!(record_alloc(AllocError::ZeroSize), KVMEM_ERR_ZERO_SIZE);
            assert_eq!(last_text(), AllocError::ZeroSize.to_string());
            record_alloc(full);
            record(CallError::Null("key"));
            assert_eq!(
                (last_text(), last_text()),
                ("key is NULL".to_owned(), "key is NULL".to_owned())
            );
        });
        checks.join().expect("no assertion failed");
    }
}

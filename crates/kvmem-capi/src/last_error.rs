//! *Last error*: the text of the failure that this thread met last.
//!
//! The value is put by, and made a text when it is asked for: most refusals (no room, not found) are looked at by their number only.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};

use crate::fail::Fail;
use crate::status::*;

thread_local! {
    static LAST: Cell<Option<Fail>> = const { Cell::new(None) };
    /// What was handed out last.
    static TEXT: RefCell<CString> = RefCell::new(CString::default());
}

/// Puts a failure by, and says its number.
#[cold]
#[inline(never)]
pub(crate) fn put(fail: Fail) -> kvmem_status {
    let status = fail.status();
    // A thread that is ending has nobody to ask.
    let _ = LAST.try_with(|last| last.set(Some(fail)));
    status
}

/// The text of the failure that this thread met last, with the numbers in it and the way out; "" if it has met none.
///
/// Never NULL. The text is good until the same thread calls this function again, or ends. A call that succeeds does not change it.
#[unsafe(no_mangle)]
pub extern "C" fn kvmem_last_error() -> *const c_char {
    let text = TEXT.try_with(|text| {
        if let Ok(Some(fail)) = LAST.try_with(Cell::take) {
            let said = fail.to_string().replace('\0', "\u{fffd}");
            *text.borrow_mut() = CString::new(said).unwrap_or_default();
        }
        text.borrow().as_ptr()
    });
    text.unwrap_or(c"".as_ptr())
}

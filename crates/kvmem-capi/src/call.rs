//! *Call*: what stands between a function of C and what it does.
//!
//! Every function goes through [`guard`] or [`on`]: no panic leaves it, and what fails becomes a
//! number and a text. Arguments are read by the functions below, which see NULL; what else a
//! pointer may be is the caller's promise (see the crate's head).

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use crate::fail::Fail;
use crate::last_error;
use crate::status::*;
use crate::table::Object;

/// Runs a call that is about no object.
#[inline(always)]
pub(crate) fn guard(run: impl FnOnce() -> Result<(), Fail>) -> kvmem_status {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => KVMEM_OK,
        Ok(Err(fail)) => last_error::put(fail),
        Err(panic) => panicked(&*panic),
    }
}

/// Runs a call on an object, which is poisoned if the call panics.
#[inline(always)]
pub(crate) fn on<T: Object>(
    handle: *const T,
    run: impl FnOnce(&T::Value) -> Result<(), Fail>,
) -> kvmem_status {
    guard_for(handle, || run(T::table().get(handle)?))
}

/// Runs a call that looks up its object itself, which is poisoned if the call panics.
#[inline(always)]
pub(crate) fn guard_for<T: Object>(
    handle: *const T,
    run: impl FnOnce() -> Result<(), Fail>,
) -> kvmem_status {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => KVMEM_OK,
        Ok(Err(fail)) => last_error::put(fail),
        Err(panic) => {
            T::table().poison(handle);
            panicked(&*panic)
        }
    }
}

/// Destroys an object. One whose destruction panics is gone all the same.
pub(crate) fn destroy<T: Object>(handle: *const T) -> kvmem_status {
    guard(|| T::table().destroy(handle))
}

#[cold]
#[inline(never)]
fn panicked(panic: &(dyn Any + Send)) -> kvmem_status {
    let said = panic.downcast_ref::<&str>().copied();
    let said =
        said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    last_error::put(Fail::said(KVMEM_PANICKED, format_args!("a defect of kvmem: {said}")))
}

/// Somewhere to write a result to.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    #[inline(always)]
    pub(crate) fn put(self, value: T) {
        // SAFETY: not NULL; else the caller's promise: room for a `T`.
        unsafe { self.0.write(value) }
    }
}

/// An out-parameter.
#[inline(always)]
pub(crate) fn out<T>(pointer: *mut T, name: &'static str) -> Result<Out<T>, Fail> {
    if pointer.is_null() { Err(Fail::Null(name)) } else { Ok(Out(pointer)) }
}

/// A structure that is read.
///
/// # Safety
/// If it is not NULL there is a `T`, for as long as the call lasts.
#[inline(always)]
pub(crate) unsafe fn read<'a, T>(pointer: *const T, name: &'static str) -> Result<&'a T, Fail> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(Fail::Null(name))
}

/// The most bytes that anything of the caller's can have: a process has no more addresses, unless
/// it asks the kernel for those above by their number.
pub(crate) const MAX_BYTES: u64 = 1 << 47;

/// How many elements of type `T` a list of the caller's has, if a process has addresses for so
/// many.
pub(crate) fn elements<T>(count: u64, name: &'static str) -> Result<usize, Fail> {
    let most = MAX_BYTES / size_of::<T>().max(1) as u64;
    if count > most {
        return Err(Fail::invalid(format_args!(
            "{name} cannot have {count} elements: a process has addresses for at most {most}; give the number that there are"
        )));
    }
    Ok(size(count))
}

/// Returns the number of ranges in a batch, if a space can name that many.
pub(crate) fn ranges(count: u64) -> Result<usize, Fail> {
    const MOST: u64 = u32::MAX as u64;
    if count > MOST {
        return Err(Fail::said(
            KVMEM_NO_ROOM,
            format_args!(
                "{count} ranges were asked for, and a space has names for at most {MOST}: ask for fewer"
            ),
        ));
    }
    Ok(size(count))
}

/// A list that is read; no elements may be NULL.
///
/// # Safety
/// If it is not NULL there are so many, for as long as the call lasts.
pub(crate) unsafe fn list<'a, T>(
    pointer: *const T,
    count: u64,
    name: &'static str,
) -> Result<&'a [T], Fail> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Fail::Null(name)),
        (false, count) => {
            let count = elements::<T>(count, name)?;
            // SAFETY: the caller's promise; no more than there are addresses.
            Ok(unsafe { slice::from_raw_parts(pointer, count) })
        }
    }
}

/// A list that is read, and has a greatest length.
///
/// # Safety
/// As for [`list`].
pub(crate) unsafe fn short_list<'a, T>(
    pointer: *const T,
    count: u64,
    most: u64,
    name: &'static str,
) -> Result<&'a [T], Fail> {
    if !pointer.is_null() && count > most {
        return Err(Fail::invalid(format_args!(
            "{name} has {count} elements: name at most {most}"
        )));
    }
    // SAFETY: the caller's promise.
    unsafe { list(pointer, count, name) }
}

/// Bytes of a value; if there are none the pointer may be NULL.
///
/// # Safety
/// As for [`list`].
pub(crate) unsafe fn value_bytes<'a>(pointer: *const c_void, bytes: u64) -> Result<&'a [u8], Fail> {
    if bytes > MAX_BYTES {
        return Err(Fail::said(
            KVMEM_TOO_LARGE,
            format_args!(
                "data cannot have {bytes} bytes: a process has addresses for at most {MAX_BYTES}"
            ),
        ));
    }
    // SAFETY: the caller's promise.
    unsafe { list(pointer.cast::<u8>(), bytes, "data") }
}

/// A text; `None` if it is NULL.
///
/// # Safety
/// If it is not NULL it ends with a NUL, and stays for as long as the call lasts.
pub(crate) unsafe fn text<'a>(
    pointer: *const c_char,
    name: &'static str,
) -> Result<Option<&'a str>, Fail> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(Some).map_err(|_| Fail::invalid(format_args!("{name} is no UTF-8")))
}

/// A text that has to be there.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn some_text<'a>(
    pointer: *const c_char,
    name: &'static str,
) -> Result<&'a str, Fail> {
    // SAFETY: the caller's promise.
    unsafe { text(pointer, name) }?.ok_or(Fail::Null(name))
}

/// A size, where the library counts in `usize`.
pub(crate) fn size(bytes: u64) -> usize {
    // The same on every machine that this is built for; see the crate's head.
    bytes as usize
}

/// Writes a text with its NUL, as much of it as fits.
///
/// # Safety
/// There are `capacity` bytes at `buffer`, if it is not NULL, and a number at `needed`, if it is
/// not NULL.
pub(crate) unsafe fn write_text(
    text: &str,
    buffer: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> Result<(), Fail> {
    let need = text.len() as u64 + 1;
    if !needed.is_null() {
        // SAFETY: the caller's promise.
        unsafe { needed.write(need) };
    }
    if buffer.is_null() {
        // Asked how long it is.
        return if capacity == 0 && !needed.is_null() { Ok(()) } else { Err(Fail::Null("buffer")) };
    }
    if let Some(room) = capacity.checked_sub(1) {
        // Cut between two characters.
        let mut cut = room.min(text.len() as u64) as usize;
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        // SAFETY: the caller's promise, and `cut` is less than `capacity`.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), cut);
            buffer.add(cut).write(0);
        }
    }
    if need > capacity { Err(Fail::TooSmall { needed: need, given: capacity }) } else { Ok(()) }
}

/// Writes a list, as much of it as fits, and how long it is.
///
/// # Safety
/// There is room for `capacity` elements at `buffer`, if it is not NULL, and a number at `count`.
pub(crate) unsafe fn write_list<T: Copy>(
    items: &[T],
    buffer: *mut T,
    capacity: u64,
    count: *mut u64,
) -> Result<(), Fail> {
    out(count, "count")?.put(items.len() as u64);
    if buffer.is_null() {
        return if capacity == 0 { Ok(()) } else { Err(Fail::Null("buffer")) };
    }
    let some = capacity.min(items.len() as u64) as usize;
    // SAFETY: the caller's promise.
    unsafe { buffer.copy_from_nonoverlapping(items.as_ptr(), some) };
    if some < items.len() {
        return Err(Fail::TooSmall { needed: items.len() as u64, given: capacity });
    }
    Ok(())
}

/// How a report is to be written.
pub(crate) fn report<T: serde::Serialize>(
    format: u32,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<String, Fail> {
    match format {
        KVMEM_TEXT => Ok(text(value)),
        KVMEM_JSON => serde_json::to_string(value).map_err(Fail::invalid),
        other => {
            Err(Fail::invalid(format_args!("{other} is no format: say KVMEM_TEXT or KVMEM_JSON")))
        }
    }
}

/// Format of a report: lines for people.
pub const KVMEM_TEXT: u32 = 0;
/// Format of a report: one line of JSON.
pub const KVMEM_JSON: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cancel::{
        kvmem_cancel, kvmem_cancel_create, kvmem_cancel_destroy, kvmem_cancel_use,
    };
    use crate::last_error::kvmem_last_error;

    fn said() -> String {
        // SAFETY: it is never NULL, and good until the next call in this thread.
        unsafe { CStr::from_ptr(kvmem_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_stays_inside_and_poisons_what_it_was_about() {
        let mut cancel: *mut kvmem_cancel = std::ptr::null_mut();
        // SAFETY: there is room for the handle.
        assert_eq!(unsafe { kvmem_cancel_create(&mut cancel) }, KVMEM_OK);
        assert_eq!(on(cancel.cast_const(), |_| panic!("the number was {}", 7)), KVMEM_PANICKED);
        assert_eq!(said(), "a defect of kvmem: the number was 7");
        // SAFETY: handles may be anything.
        unsafe {
            assert_eq!(kvmem_cancel_use(cancel), KVMEM_POISONED);
            assert_eq!(kvmem_cancel_destroy(cancel), KVMEM_OK);
            assert_eq!(kvmem_cancel_destroy(cancel), KVMEM_BAD_HANDLE);
        }
        assert_eq!(guard(|| panic!("plain words")), KVMEM_PANICKED);
        assert_eq!(said(), "a defect of kvmem: plain words");
        let changed = guard(|| kvmem_cancel::table().exclusive(cancel, |_| panic!("it is gone")));
        assert_eq!(changed, KVMEM_BAD_HANDLE);
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let mut buffer = [c_char::MAX; 8];
        let mut needed = 0;
        // SAFETY: there is as much room as is said.
        let done = unsafe { write_text("a\u{20ac}b", buffer.as_mut_ptr(), 4, &mut needed) };
        assert!(matches!(done, Err(Fail::TooSmall { needed: 6, given: 4 })));
        assert_eq!((needed, buffer[0], buffer[1]), (6, b'a' as c_char, 0));
        // SAFETY: as above.
        unsafe {
            assert!(write_text("a", buffer.as_mut_ptr(), 0, &mut needed).is_err());
            assert!(write_text("a", std::ptr::null_mut(), 0, &mut needed).is_ok());
            assert!(write_text("a", std::ptr::null_mut(), 1, &mut needed).is_err());
            assert!(write_text("a", buffer.as_mut_ptr(), 2, std::ptr::null_mut()).is_ok());
        }
    }
}

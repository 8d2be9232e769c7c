//! *Call*: the frame of every C function.
//!
//! Every function runs in [`guard`] or by a [`Handle`](crate::argument::Handle): no panic leaves
//! it, and an error becomes a status and a text. The functions below read arguments and detect
//! NULL. All other properties of a pointer are promise 1 of the C caller (see the head of the
//! crate).

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use crate::error::CallError;
use crate::last_error;
use crate::status::*;
use crate::table::Object;

/// Runs a call that concerns no object.
#[inline(always)]
pub(crate) fn guard(run: impl FnOnce() -> Result<(), CallError>) -> kvmem_status {
    guard_or(|| run().map(|()| KVMEM_OK), |status| status)
}

/// Runs a call that concerns no object and returns more than a status: `failed` makes its result of
/// the status of a failure.
#[inline(always)]
pub(crate) fn guard_or<R>(
    run: impl FnOnce() -> Result<R, CallError>,
    failed: impl FnOnce(kvmem_status) -> R,
) -> R {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => failed(last_error::record(error)),
        Err(panic) => failed(panicked(&*panic)),
    }
}

/// Runs a call that looks up its own object, and poisons that object if the call panics.
#[inline(always)]
pub(crate) fn guard_for<T: Object>(
    handle: *const T,
    run: impl FnOnce() -> Result<(), CallError>,
) -> kvmem_status {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => KVMEM_OK,
        Ok(Err(error)) => last_error::record(error),
        Err(panic) => {
            T::table().poison(handle);
            panicked(&*panic)
        }
    }
}

#[cold]
#[inline(never)]
fn panicked(panic: &(dyn Any + Send)) -> kvmem_status {
    let said = panic.downcast_ref::<&str>().copied();
    let said =
        said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    last_error::record(CallError::new(
        KVMEM_ERR_PANICKED,
        format_args!("a defect of kvmem: {said}"),
    ))
}

/// A place to write a result to: a pointer that is not NULL, with room for a `T`.
pub(crate) struct Place<T>(*mut T);

impl<T: Object> Place<*mut T> {
    /// Makes an object and writes its handle.
    pub(crate) fn insert(self, value: T::Value) -> Result<(), CallError> {
        self.put(T::table().insert(value)?);
        Ok(())
    }
}

impl<T> Place<T> {
    #[inline(always)]
    pub(crate) fn put(self, value: T) {
        // SAFETY: `place` checked that the pointer is not NULL, and its caller promised that it is
        // aligned and writable for a `T` during the call, which still runs. The old bytes are not
        // read or dropped: the place may be uninitialized.
        unsafe { self.0.write(value) }
    }
}

/// Returns an out-parameter that is not NULL.
///
/// # Safety
/// If the pointer is not NULL, it is aligned and writable for a `T` until the result is used, and
/// no other thread accesses the place meanwhile.
#[inline(always)]
pub(crate) unsafe fn place<T>(pointer: *mut T, name: &'static str) -> Result<Place<T>, CallError> {
    if pointer.is_null() { Err(CallError::Null(name)) } else { Ok(Place(pointer)) }
}

/// A list to write to: `capacity` places of the caller, and one for the number of elements.
pub(crate) struct PlaceList<T> {
    first: *mut T,
    count: Place<u64>,
    /// The most elements that the list takes, and that a server is asked for.
    pub(crate) max: u32,
}

impl<T> PlaceList<T> {
    /// Writes the elements, as many as the list takes, and their number.
    pub(crate) fn put<V: Into<T>>(self, values: impl IntoIterator<Item = V>) {
        let mut written = 0;
        // A server sends no more than were requested; this library does not depend on it.
        for value in values.into_iter().take(self.max as usize) {
            // SAFETY: the caller of `place_list` promised `max` places, and `written` is less. The
            // pointer was checked there.
            unsafe { self.first.add(written).write(value.into()) };
            written += 1;
        }
        self.count.put(written as u64);
    }
}

/// Returns a list of the caller: NULL only with `capacity` 0.
///
/// # Safety
/// The caller promises what [`place`] requires for `count`, and for `capacity` places at `pointer`.
pub(crate) unsafe fn place_list<T>(
    pointer: *mut T,
    capacity: u64,
    name: &'static str,
    count: *mut u64,
) -> Result<PlaceList<T>, CallError> {
    // SAFETY: the caller promises what `place` requires, of the same pointer.
    let count = unsafe { place(count, "out_count") }?;
    if pointer.is_null() && capacity > 0 {
        return Err(CallError::Null(name));
    }
    Ok(PlaceList { first: pointer, count, max: u32::try_from(capacity).unwrap_or(u32::MAX) })
}

/// Borrows a structure.
///
/// # Safety
/// If the pointer is not NULL, it is aligned and points to an initialized `T`. No thread writes to
/// it during `'a`.
#[inline(always)]
pub(crate) unsafe fn read<'a, T>(
    pointer: *const T,
    name: &'static str,
) -> Result<&'a T, CallError> {
    // SAFETY: NULL becomes `None`. Otherwise the caller promises an aligned, initialized `T` to
    // which no thread writes during `'a`.
    unsafe { pointer.as_ref() }.ok_or(CallError::Null(name))
}

/// The largest size in bytes of any object of the caller. A process has no more addresses, unless
/// it asks the kernel by hint for those above.
pub(crate) const MAX_BYTES: u64 = 1 << 47;

/// Returns the number of elements in a list of the caller, if a process has addresses for that many
/// elements of type `T`.
pub(crate) fn elements<T>(count: u64, name: &'static str) -> Result<usize, CallError> {
    let max = MAX_BYTES / size_of::<T>().max(1) as u64;
    if count > max {
        return Err(CallError::invalid(format_args!(
            "{name} has {count} elements, and a process has addresses for at most {max}: pass the \
             number of elements in the list"
        )));
    }
    Ok(size(count))
}

/// Returns the number of ranges in a batch, if a space can name that many.
pub(crate) fn ranges(count: u64) -> Result<usize, CallError> {
    const MAX: u64 = u32::MAX as u64;
    if count > MAX {
        return Err(CallError::new(
            KVMEM_ERR_OUT_OF_SPACE,
            format_args!(
                "{count} ranges were requested, and a space has at most {MAX}: request fewer"
            ),
        ));
    }
    Ok(size(count))
}

/// Borrows a list. The pointer may be NULL if there are no elements.
///
/// # Safety
/// If the pointer is not NULL, it is aligned and points to `count` initialized elements. No thread
/// writes to them during `'a`.
pub(crate) unsafe fn list<'a, T>(
    pointer: *const T,
    count: u64,
    name: &'static str,
) -> Result<&'a [T], CallError> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(CallError::Null(name)),
        (false, count) => {
            let count = elements::<T>(count, name)?;
            // SAFETY: the pointer is not NULL, and the caller promises `count` aligned, initialized
            // elements to which no thread writes during `'a`. `elements` checked that their bytes
            // are at most 2^47, which is less than `isize::MAX`.
            Ok(unsafe { slice::from_raw_parts(pointer, count) })
        }
    }
}

/// Borrows a list of at most `max` elements.
///
/// # Safety
/// The caller keeps the promises of [`list`].
pub(crate) unsafe fn short_list<'a, T>(
    pointer: *const T,
    count: u64,
    max: u64,
    name: &'static str,
) -> Result<&'a [T], CallError> {
    if !pointer.is_null() && count > max {
        return Err(CallError::invalid(format_args!(
            "{name} has {count} elements, and the limit is {max}: pass fewer"
        )));
    }
    // SAFETY: the caller promises what `list` requires, of the same pointer and count.
    unsafe { list(pointer, count, name) }
}

/// Borrows the bytes of a value. The pointer may be NULL if there are none.
///
/// # Safety
/// If the pointer is not NULL, it points to `bytes` initialized bytes. No thread writes to them
/// during `'a`.
pub(crate) unsafe fn value_bytes<'a>(
    pointer: *const c_void,
    bytes: u64,
) -> Result<&'a [u8], CallError> {
    if bytes > MAX_BYTES {
        return Err(CallError::new(
            KVMEM_ERR_TOO_LARGE,
            format_args!(
                "data has {bytes} bytes, and a process has addresses for at most {MAX_BYTES}: \
                 pass the number of bytes at data"
            ),
        ));
    }
    // SAFETY: the caller promises that many initialized bytes, to which no thread writes during
    // `'a`; every address is aligned for a byte.
    unsafe { list(pointer.cast::<u8>(), bytes, "data") }
}

/// Borrows a text; `None` if the pointer is NULL.
///
/// # Safety
/// If the pointer is not NULL, it points to initialized bytes that end with a NUL. No thread writes
/// to them during `'a`.
pub(crate) unsafe fn text<'a>(
    pointer: *const c_char,
    name: &'static str,
) -> Result<Option<&'a str>, CallError> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the pointer is not NULL, and the caller promises initialized bytes that end with a
    // NUL and to which no thread writes during `'a`.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map(Some)
        .map_err(|_| CallError::invalid(format_args!("{name} is not UTF-8: pass a UTF-8 text")))
}

/// Converts a size for those parts of the library that count in `usize`.
pub(crate) fn size(bytes: u64) -> usize {
    // Lossless on every supported machine: the crate requires 64 bits.
    bytes as usize
}

/// Writes a text and its NUL, truncated to the buffer.
///
/// # Safety
/// If `buffer` is not NULL, it points to `capacity` writable bytes, none of them of `text`. If
/// `needed` is not NULL, it is aligned and writable for a number.
pub(crate) unsafe fn write_text(
    text: &str,
    buffer: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> Result<(), CallError> {
    let need = text.len() as u64 + 1;
    if !needed.is_null() {
        // SAFETY: the pointer is not NULL, and the caller promises a place for a number.
        unsafe { needed.write(need) };
    }
    if buffer.is_null() {
        // The caller asks only for the length.
        return if capacity == 0 && !needed.is_null() {
            Ok(())
        } else {
            Err(CallError::Null("buffer"))
        };
    }
    if let Some(room) = capacity.checked_sub(1) {
        // Truncates between two characters.
        let mut cut = room.min(text.len() as u64) as usize;
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        // SAFETY: `cut` is at most the text's length and less than `capacity`, so the bytes that
        // are read lie in `text`, and those that are written, with the NUL, in the `capacity` bytes
        // that the caller promises. The caller also promises that the two do not overlap.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), cut);
            buffer.add(cut).write(0);
        }
    }
    if need > capacity {
        Err(CallError::BufferTooSmall { needed: need, given: capacity })
    } else {
        Ok(())
    }
}

/// Writes a list, truncated to the buffer, and its full length.
///
/// # Safety
/// If `buffer` is not NULL, it is aligned and writable for `capacity` elements, none of them of
/// `items`. If `count` is not NULL, it is aligned and writable for a number.
pub(crate) unsafe fn write_list<T: Copy>(
    items: &[T],
    buffer: *mut T,
    capacity: u64,
    count: *mut u64,
) -> Result<(), CallError> {
    // SAFETY: the caller promises that `count` is NULL or a place for a number.
    let length = unsafe { place(count, "count") }?;
    length.put(items.len() as u64);
    if buffer.is_null() {
        return if capacity == 0 { Ok(()) } else { Err(CallError::Null("buffer")) };
    }
    let some = capacity.min(items.len() as u64) as usize;
    // SAFETY: `some` is at most `capacity` and the number of items. The caller promises room for
    // `capacity` elements that are not those of `items`, so the ranges are valid and disjoint.
    unsafe { buffer.copy_from_nonoverlapping(items.as_ptr(), some) };
    if some < items.len() {
        return Err(CallError::BufferTooSmall { needed: items.len() as u64, given: capacity });
    }
    Ok(())
}

/// Returns a report in the requested format.
pub(crate) fn report<T: serde::Serialize>(
    format: u32,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<String, CallError> {
    match format {
        KVMEM_TEXT => Ok(text(value)),
        KVMEM_JSON => serde_json::to_string(value).map_err(CallError::invalid),
        other => Err(CallError::invalid(format_args!(
            "the format is {other}: use KVMEM_TEXT or KVMEM_JSON"
        ))),
    }
}

/// Format of a report: lines of text for people.
pub const KVMEM_TEXT: u32 = 0;
/// Format of a report: one line of JSON.
pub const KVMEM_JSON: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::argument::of_test::{handle, out, owned};
    use crate::cancel::{
        kvmem_cancel, kvmem_cancel_create, kvmem_cancel_destroy, kvmem_cancel_request,
    };
    use crate::last_error::kvmem_last_error;

    fn said() -> String {
        // SAFETY: never NULL, and valid until the next call in this thread.
        unsafe { CStr::from_ptr(kvmem_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_is_caught_and_poisons_its_object() {
        let mut cancel: *mut kvmem_cancel = std::ptr::null_mut();
        // SAFETY: the variable has room for the handle.
        assert_eq!(unsafe { kvmem_cancel_create(out(&mut cancel)) }, KVMEM_OK);
        // SAFETY: the test is the only caller, and destroys the object after its last use.
        let on = || unsafe { (handle(cancel), owned(cancel)) };
        assert_eq!(on().0.on(|_| panic!("the number was {}", 7)), KVMEM_ERR_PANICKED);
        assert_eq!(said(), "a defect of kvmem: the number was 7");
        // SAFETY: handles may be any bits.
        unsafe {
            assert_eq!(kvmem_cancel_request(on().0), KVMEM_ERR_POISONED);
            assert_eq!(kvmem_cancel_destroy(on().1), KVMEM_OK);
            assert_eq!(kvmem_cancel_destroy(on().1), KVMEM_ERR_BAD_HANDLE);
        }
        assert_eq!(guard(|| panic!("plain words")), KVMEM_ERR_PANICKED);
        assert_eq!(said(), "a defect of kvmem: plain words");
        assert_eq!(on().1.exclusive(|_| panic!("it is gone")), KVMEM_ERR_BAD_HANDLE);
    }

    #[test]
    fn a_text_is_truncated_between_characters() {
        let mut buffer = [c_char::MAX; 8];
        let mut needed = 0;
        // SAFETY: the buffer has the stated capacity.
        let done = unsafe { write_text("a\u{20ac}b", buffer.as_mut_ptr(), 4, &mut needed) };
        assert!(matches!(done, Err(CallError::BufferTooSmall { needed: 6, given: 4 })));
        assert_eq!((needed, buffer[0], buffer[1]), (6, b'a' as c_char, 0));
        // SAFETY: the buffer has at least the stated capacity in each call.
        unsafe {
            assert!(write_text("a", buffer.as_mut_ptr(), 0, &mut needed).is_err());
            assert!(write_text("a", std::ptr::null_mut(), 0, &mut needed).is_ok());
            assert!(write_text("a", std::ptr::null_mut(), 1, &mut needed).is_err());
            assert!(write_text("a", buffer.as_mut_ptr(), 2, std::ptr::null_mut()).is_ok());
        }
    }
}
